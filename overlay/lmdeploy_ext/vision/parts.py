"""Parts of the tensors that `VisionBackend.encode` fills."""
from typing import List, Sequence

import torch


def part_of(out: Sequence[torch.Tensor], start: int, stop: int) -> List[torch.Tensor]:
    """The rows of tiles `start` to `stop` of a batch.

    Args:
        out: tensors [n_i, tokens, hidden], one after the other the batch's.

    Returns:
        views [m_i, tokens, hidden] with sum(m_i) = stop - start.
    """
    parts, first = [], 0
    for tensor in out:
        begin, end = max(start - first, 0), min(stop - first, len(tensor))
        if begin < end:
            parts.append(tensor[begin:end])
        first += len(tensor)
    return parts
