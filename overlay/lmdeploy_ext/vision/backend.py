"""What turns tiles into features; see docs/vision.md."""
from typing import Protocol, Sequence

import torch


class VisionBackend(Protocol):
    """Something that encodes tiles. One thread at a time calls it.

    Attributes:
        device: where it takes tiles and computes.
        dtype: of the features.
        side: of a tile, in pixels.
        tokens: rows of features of a tile.
        hidden: length of a row.
        max_tiles: in one call.
    """
    device: torch.device
    dtype: torch.dtype
    side: int
    tokens: int
    hidden: int
    max_tiles: int

    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """Fill `out` with the features of tiles, in order.

        The work is issued to the current stream of `device`; the host does not wait for it.

        Args:
            tiles: uint8 RGB [n, side, side, 3] on `device`, n from 1 to `max_tiles`.
            out: tensors [n_i, tokens, hidden] whose n_i add up to n; they may be of another
                floating dtype.
        """
        ...


def run(backend: VisionBackend, tiles: torch.Tensor) -> torch.Tensor:
    """The features of tiles in a tensor of their own.

    Args:
        tiles: as `encode` takes them.

    Returns:
        [n, tokens, hidden] in the backend's dtype, on its device.
    """
    features = torch.empty((len(tiles), backend.tokens, backend.hidden), dtype=backend.dtype,
                           device=backend.device)
    backend.encode(tiles, [features])
    return features
