"""What the tile scheduler itself costs a batch, with a backend that does nothing and with a GPU at
work."""
import time
from dataclasses import dataclass
from typing import List, Sequence

import numpy as np
import torch

from ...vision.backend import VisionBackend, run
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


def added_ms(backend: VisionBackend, images: int = 16, batches: int = 40,
             rounds: int = 5) -> float:
    """Milliseconds that a GPU takes longer for a batch that the scheduler makes of images of one
    tile each and uploads, while more of them wait, than for the same tiles in its memory: the
    median over rounds, in which both have a turn.

    Args:
        batches: in a turn.
    """
    generator = torch.Generator().manual_seed(0)
    tiles = torch.randint(256, (images, backend.side, backend.side, 3), dtype=torch.uint8,
                          generator=generator).pin_memory()
    arrays, there = [tile[None].numpy() for tile in tiles], tiles.to(backend.device)
    scheduler = TileScheduler(backend, images)

    def scheduled() -> float:
        before, begin = scheduler.figures().batches, time.perf_counter()
        futures = [scheduler.submit(arrays[number % images], scheduler.flow(), _nothing)
                   for number in range(batches * images)]
        for future in futures:
            future.result()
        return (time.perf_counter() - begin) / (scheduler.figures().batches - before)

    def alone() -> float:
        torch.cuda.synchronize(backend.device)
        begin = time.perf_counter()
        for _ in range(batches):
            run(backend, there)
        torch.cuda.synchronize(backend.device)
        return (time.perf_counter() - begin) / batches

    try:
        turns = [(scheduled(), alone()) for _ in range(rounds + 1)][1:]
    finally:
        scheduler.close()
    return 1e3 * float(np.median([ours - bare for ours, bare in turns]))


def _nothing() -> None:
    pass
