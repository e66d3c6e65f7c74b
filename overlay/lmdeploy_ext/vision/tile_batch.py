"""Images on their way through the scheduler, and the batches that their tiles travel in."""
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Sequence

import numpy as np
import torch

from lmdeploy_ext.vision.tile_queue import Flow, Job, Part


class ImageJob(Job):
    """An image whose features somebody waits for.

    Attributes:
        tiles: uint8 [count, side, side, 3] in host memory; None once it is given back.
        uploaded: what to call when `tiles` is not needed any more; None once it is called.
        uploads: batches that took tiles of it and have not copied them yet.
        future: of the features.
        features: [count, tokens, hidden], filled batch by batch; None before the first.
        encoded: tiles whose features are complete.
        submitted: when it came, by `time.perf_counter`.
    """

    def __init__(self, flow: Flow, tiles: np.ndarray, uploaded: Callable[[], None]) -> None:
        super().__init__(flow, len(tiles))
        self.tiles: Optional[np.ndarray] = tiles
        self.uploaded: Optional[Callable[[], None]] = uploaded
        self.uploads = 0
        self.future: 'Future[torch.Tensor]' = Future()
        self.features: Optional[torch.Tensor] = None
        self.encoded = 0
        self.submitted = time.perf_counter()


@dataclass(eq=False)
class TileBatch:
    """Tiles that are encoded together.

    Attributes:
        parts: where they come from.
        encoded: those parts of it that have features; the others have failed.
        begin: when it was taken from the queue, by `time.perf_counter`.
    """
    parts: Sequence[Part[ImageJob]]
    encoded: List[Part[ImageJob]] = field(default_factory=list)
    begin: float = field(default_factory=time.perf_counter)

    @property
    def count(self) -> int:
        """Of its tiles."""
        return sum(part.last - part.first for part in self.parts)


def checked_tiles(tiles: np.ndarray, side: int) -> np.ndarray:
    """Tiles in one writable piece of memory, as `torch.from_numpy` takes them without a warning.

    Returns:
        `tiles` itself, or a copy where it is a view with gaps, mirrored, or read-only.

    Raises:
        ValueError: they are not uint8 [n, side, side, 3] with n at least 1.
    """
    expected = f'expected uint8 [n, {side}, {side}, 3] with n at least 1'
    remedy = 'cut the image as vl.tiles does, for this vision model'
    if not isinstance(tiles, np.ndarray):
        raise ValueError(f'found tiles of type {type(tiles).__name__}; {expected}; {remedy}')
    if tiles.dtype != np.uint8 or tiles.shape[1:] != (side, side, 3) or not len(tiles):
        raise ValueError(f'found tiles {tiles.dtype} {list(tiles.shape)}; {expected}; {remedy}')
    if tiles.flags.c_contiguous and tiles.flags.writeable:
        return tiles
    return np.array(tiles, order='C')
