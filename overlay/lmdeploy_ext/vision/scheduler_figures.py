"""Numbers of the tile scheduler."""
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Mapping


@dataclass(frozen=True)
class SchedulerFigures:
    """Counters since the start, and what waits now.

    Attributes:
        tiles: in batches that ended.
        images: whose features were delivered.
        batches: that ended.
        failed_images: whose request got an error.
        cancelled_images: that nobody wanted any more, whether they had been encoded or not.
        batches_by_tiles: how many batches there were of each size.
        queue_seconds: from `submit` until the first tile was taken into a batch, summed over
            images.
        run_seconds: in which at least one batch was on its way.
        waiting_tiles: in no batch yet, now.
    """
    tiles: int
    images: int
    batches: int
    failed_images: int
    cancelled_images: int
    batches_by_tiles: Mapping[int, int]
    queue_seconds: float
    run_seconds: float
    waiting_tiles: int


class SchedulerMeter:
    """Counts; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._images = self._failed = self._cancelled = 0
        self._queue_seconds = self._run_seconds = 0.0
        self._batches_by_tiles: Counter = Counter()
        self._last_end = 0.0

    def taken(self, queue_seconds: float) -> None:
        """The first tiles of images are in a batch; they have waited so long together."""
        with self._lock:
            self._queue_seconds += queue_seconds

    def batch(self, tiles: int, begin: float) -> None:
        """A batch that was begun at `begin` (`time.perf_counter`) has ended. Of the time that it
        shared with the one before it, none is counted twice."""
        with self._lock:
            self._batches_by_tiles[tiles] += 1
            end = time.perf_counter()
            self._run_seconds += end - max(begin, self._last_end)
            self._last_end = end

    def delivered(self, images: int) -> None:
        """Images have their features."""
        with self._lock:
            self._images += images

    def failed(self) -> None:
        """An image has an error instead."""
        with self._lock:
            self._failed += 1

    def cancelled(self, images: int) -> None:
        """Nobody wants these images any more."""
        with self._lock:
            self._cancelled += images

    def figures(self, waiting_tiles: int) -> SchedulerFigures:
        """All numbers, of one moment but for what waits."""
        with self._lock:
            sizes = dict(self._batches_by_tiles)
            return SchedulerFigures(
                tiles=sum(size * batches for size, batches in sizes.items()),
                images=self._images, batches=sum(sizes.values()), failed_images=self._failed,
                cancelled_images=self._cancelled, batches_by_tiles=sizes,
                queue_seconds=self._queue_seconds, run_seconds=self._run_seconds,
                waiting_tiles=waiting_tiles)
