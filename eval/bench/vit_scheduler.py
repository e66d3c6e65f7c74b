"""What the tile scheduler itself takes: its batches given to a backend that does nothing."""
import statistics
import threading
import time
from concurrent.futures import wait
from typing import Any, Dict, Sequence

import torch

from lmdeploy_ext.vision.backend import VisionBackend
from lmdeploy_ext.vision.tile_scheduler import TileScheduler

from ..errors import EvalError

BATCH_TILES = 16  # of as many images, each a request of its own
PATIENCE_SECONDS = 60.0


class IdleBackend(VisionBackend):
    """Leaves features as they are. Its first batch waits until it is told to begin.

    Tiles are so small that moving them takes no time: that is work of the machine, and with pinned
    memory goes on beside.
    """
    side, tokens, hidden, max_tiles = 14, 1, 8, BATCH_TILES

    def __init__(self, device: torch.device) -> None:
        self.device, self.dtype = device, torch.float32
        self.begin = threading.Event()

    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """See `VisionBackend`."""
        self.begin.wait()


def scheduler_row(device: torch.device, batches: int = 200, rounds: int = 7) -> Dict[str, Any]:
    """Medians over rounds of what a batch takes, without copies and computation: to submit its
    images, and to make it and deliver its features."""
    taken = [_round(device, batches) for _ in range(rounds + 1)][1:]
    submit, serve = (statistics.median(column) for column in zip(*taken))
    return {
        'part': 'scheduler',
        'images_a_batch': BATCH_TILES,
        'batches': batches,
        'rounds': rounds,
        'submit_ms': round(1000 * submit, 4),
        'serve_ms': round(1000 * serve, 4),
        'ms_a_batch': round(1000 * (submit + serve), 4)
    }


def _round(device: torch.device, batches: int) -> Sequence[float]:
    """Seconds a batch for `submit`, all before the first batch, and for the rest."""
    backend = IdleBackend(device)
    tiles = torch.zeros((1, backend.side, backend.side, 3), dtype=torch.uint8,
                        pin_memory=device.type == 'cuda').numpy()
    scheduler = TileScheduler(backend, BATCH_TILES)
    try:
        start = time.perf_counter()
        futures = [scheduler.submit(tiles, scheduler.flow(), _nothing)
                   for _ in range(batches * BATCH_TILES)]
        submitted = time.perf_counter()
        backend.begin.set()
        _, missing = wait(futures, PATIENCE_SECONDS)
        end = time.perf_counter()
        if missing:
            raise EvalError(f'{len(missing)} of {len(futures)} images are not done after '
                            f'{PATIENCE_SECONDS:.0f} s; the tile scheduler hangs')
        return (submitted - start) / batches, (end - submitted) / scheduler.figures().batches
    finally:
        backend.begin.set()
        scheduler.close()


def _nothing() -> None:
    """The tiles are used again and again."""
