"""What the tile scheduler itself costs a batch: queue, batch, futures, copies of a few bytes."""
import time
from dataclasses import dataclass
from typing import List, Sequence

import numpy as np
import torch

from ...vision.tile_scheduler import TileScheduler


@dataclass(frozen=True)
class Overhead:
    """Milliseconds a batch, medians over rounds.

    Attributes:
        cpu_ms: of all threads of the process, those that submit and wait for results included.
        wall_ms: from the first `submit` until the last result.
    """
    cpu_ms: float
    wall_ms: float


class NoBackend:
    """Encodes nothing, at once: tiles of 2 x 2 pixels to one row of 8 numbers."""
    dtype = torch.float32
    side, tokens, hidden, max_tiles = 2, 1, 8, 1024

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """Leave the features as they are."""


def scheduler_overhead(device: torch.device, images: int = 16, rounds: int = 500) -> Overhead:
    """Measure it.

    Args:
        device: of the backend; on a GPU streams and events are in the figures.
        images: of one tile each, in one batch.
    """
    tiles = torch.zeros((1, NoBackend.side, NoBackend.side, 3), dtype=torch.uint8,
                        pin_memory=device.type == 'cuda').numpy()
    scheduler = TileScheduler(NoBackend(device), images)
    cpu: List[float] = []
    wall: List[float] = []
    try:
        for _ in range(rounds):
            batches = scheduler.figures().batches
            wall_begin, cpu_begin = time.perf_counter(), time.process_time()
            futures = [scheduler.submit(tiles, scheduler.flow(), _nothing) for _ in range(images)]
            for future in futures:
                future.result()
            cpu_end, wall_end = time.process_time(), time.perf_counter()
            batches = scheduler.figures().batches - batches
            cpu.append((cpu_end - cpu_begin) / batches)
            wall.append((wall_end - wall_begin) / batches)
    finally:
        scheduler.close()
    return Overhead(*(1e3 * float(np.median(values)) for values in (cpu, wall)))


def _nothing() -> None:
    pass
