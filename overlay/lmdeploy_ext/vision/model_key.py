"""The identity of a vision model, by content: as `content_key` for images."""
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Tuple

import torch
from torch import nn

from lmdeploy_ext.vision.content_key import digest

# what `extract_feature` uses of an `InternVLChatModel`
_VISION_PARTS = ('vision_model.', 'mlp1.')
_MAX_THREADS = 8


def model_key(model: nn.Module, config: Any, backend: str, dtype: torch.dtype) -> bytes:
    """The key of everything that makes features of tiles.

    Every weight of the vision tower and the projector is hashed, whatever device it is on: at
    1 GB/s a core, on up to 8 cores, 0.6 s of one core for 300M parameters in float16. Weights
    that change later need a new key.

    Args:
        model: an `InternVLChatModel`, of this project or of a checkpoint's code.
        config: its configuration; all of it counts.
        backend: the kind of backend, for features differ by rounding from kind to kind.
        dtype: that the backend computes in.

    Raises:
        ValueError: the model has no vision tower, or its weights are not loaded.
    """
    weights = [(name, value) for name, value in sorted(model.state_dict().items())
               if name.startswith(_VISION_PARTS)]
    if not weights:
        raise ValueError(f'found a {type(model).__name__} without {" and ".join(_VISION_PARTS)} '
                         'in its state_dict(); expected an InternVLChatModel; give that')
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, 'weights') as pool:
        hashes = list(pool.map(_weight_hash, weights))
    written = json.dumps(config.to_dict(), sort_keys=True, default=str)
    return digest('vision model', [written.encode(), backend.encode(), str(dtype).encode(),
                                   *hashes])


def _weight_hash(named: Tuple[str, torch.Tensor]) -> bytes:
    name, weight = named
    if weight.is_meta:
        raise ValueError(f'found no values in {name}, which is on the meta device; expected a '
                         'loaded model; load its weights first')
    values = weight.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy()
    about = json.dumps([name, str(weight.dtype), list(weight.shape)])
    return digest('weight', [about.encode(), values])
