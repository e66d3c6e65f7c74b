"""What the scheduler's threads and its callers share: the images that wait or are on their way."""
import logging
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Set

import torch

from lmdeploy_ext.vision.scheduler_figures import SchedulerFigures, SchedulerMeter
from lmdeploy_ext.vision.tile_batch import ImageJob, TileBatch
from lmdeploy_ext.vision.tile_queue import TileQueue

logger = logging.getLogger(__name__)


class SchedulerClosed(RuntimeError):
    """The scheduler takes and encodes no more images."""


class TileWork:
    """Images from `submit` until their future is done and their memory given back.

    Any thread may call any method. Futures and `uploaded` callbacks are called without the lock.

    Args:
        batch_tiles: at most, in one batch.
        depth: batches that may be on their way at once.
    """

    def __init__(self, batch_tiles: int, depth: int) -> None:
        self._batch_tiles, self._depth = batch_tiles, depth
        self._meter = SchedulerMeter()
        self._changed = threading.Condition(threading.Lock())
        # all of these only under the lock
        self._queue: TileQueue[ImageJob] = TileQueue(batch_tiles)
        self._unsettled: Set[ImageJob] = set()  # their futures are nobody's to settle yet
        self._in_flight = 0
        self._ended: Optional[str] = None  # why

    def put(self, job: ImageJob) -> None:
        """Queue an image.

        Raises:
            SchedulerClosed: after `end`.
        """
        with self._changed:
            if self._ended:
                raise SchedulerClosed(self._ended)
            self._queue.put(job)
            self._unsettled.add(job)
            self._changed.notify()
        # weak: the job holds the future, and both should go when nobody needs them any more
        job.future.add_done_callback(partial(self._left, weakref.ref(job)))

    def next_batch(self) -> Optional[TileBatch]:
        """Wait until there are tiles and few enough batches on their way; None after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (
                self._queue.waiting_tiles and self._in_flight < self._depth))
            if self._ended:
                return None
            batch = TileBatch(self._queue.take(self._batch_tiles))
            self._in_flight += 1
            for part in batch.parts:
                part.job.uploads += 1
        self._meter.taken(sum(batch.begin - part.job.submitted for part in batch.parts
                              if part.first == 0))
        return batch

    def uploaded(self, batch: TileBatch) -> None:
        """No copy of a batch's tiles is under way any more."""
        with self._changed:
            for part in batch.parts:
                part.job.uploads -= 1
        self._give_back([part.job for part in batch.parts])

    def finished(self, batch: TileBatch, error: Optional[Exception] = None) -> None:
        """A batch has ended: its encoded parts have their features, or there was an error."""
        self._meter.batch(batch.count, batch.begin)
        with self._changed:
            self._in_flight -= 1
            self._changed.notify()
        if error is not None:
            for part in batch.parts:
                self.fail(part.job, error)
            return
        complete = []
        for part in batch.encoded:
            part.job.encoded += part.last - part.first
            if part.job.encoded == part.job.count:
                complete.append(part.job)
        wanted = self._claim(complete)
        self._meter.delivered(len(wanted))
        for job in wanted:
            job.future.set_result(job.features.flatten(0, 1))

    def fail(self, job: ImageJob, error: Exception) -> None:
        """Settle an image, unless it is settled, and drop what is left of it."""
        if self._claim([job]):
            self._meter.failed()
            job.future.set_exception(error)
        self._give_back([job])

    def end(self, reason: str, waiting_only: bool) -> None:
        """Take no more images, make no more batches, and fail those that wait; those whose tiles
        are all on their way, too, unless `waiting_only`."""
        with self._changed:
            self._ended = self._ended or reason
            jobs = [job for job in self._unsettled if job.queued or not waiting_only]
            self._changed.notify_all()
        for job in jobs:
            self.fail(job, SchedulerClosed(reason))

    def figures(self) -> SchedulerFigures:
        """The numbers of now."""
        return self._meter.figures(self._queue.waiting_tiles)

    def _left(self, reference: 'weakref.ref[ImageJob]', future: 'Future[torch.Tensor]') -> None:
        """A future is done; if because it was cancelled, its image leaves."""
        job = reference()
        if job is not None and future.cancelled():
            self._claim([job])
            self._give_back([job])

    def _claim(self, jobs: Sequence[ImageJob]) -> List[ImageJob]:
        """Take images out; those whose futures it is now for the caller to settle."""
        with self._changed:
            unsettled = [job for job in jobs if job in self._unsettled]
            self._unsettled.difference_update(unsettled)
            for job in unsettled:
                self._queue.remove(job)
        wanted = [job for job in unsettled if job.future.set_running_or_notify_cancel()]
        self._meter.cancelled(len(unsettled) - len(wanted))
        return wanted

    def _give_back(self, jobs: Sequence[ImageJob]) -> None:
        """Give images' memory back, unless tiles of it are still to be copied, or it was."""
        callbacks = []
        with self._changed:
            for job in jobs:
                if not (job.queued or job.uploads or job.uploaded is None):
                    callbacks.append(job.uploaded)
                    job.uploaded = job.tiles = None
        for uploaded in callbacks:
            call_safely(uploaded)


def call_safely(uploaded: Callable[[], Any]) -> None:
    """Call what a caller handed in; what it raises is logged."""
    try:
        uploaded()
    except Exception:  # whatever it is, the other images' threads go on
        logger.exception('giving the memory of tiles back failed')
