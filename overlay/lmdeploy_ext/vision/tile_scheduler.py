"""Tiles of all requests in shared batches; see docs/vision.md, "Queue and scheduler"."""
import asyncio
import atexit
import logging
import threading
from concurrent.futures import Future
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple

import numpy as np
import torch

from lmdeploy_ext.vision.backend import VisionBackend
from lmdeploy_ext.vision.scheduler_figures import SchedulerFigures
from lmdeploy_ext.vision.tile_batch import ImageJob, TileBatch, checked_tiles
from lmdeploy_ext.vision.tile_queue import Flow, Part
from lmdeploy_ext.vision.tile_work import SchedulerClosed, TileWork, call_safely
from lmdeploy_ext.vision.transfer import Outputs, transfer_to

__all__ = ['SchedulerClosed', 'TileScheduler']

logger = logging.getLogger(__name__)

EXIT_SECONDS = 5  # that batches on their way may take when the interpreter ends


class TileScheduler:
    """Encodes images in batches that are made whenever the backend can take one.

    One thread makes batches and issues them; on a GPU two more wait for what it has done. None
    polls. Call `close` at the end: the threads keep the scheduler alive.

    Args:
        backend: called by the scheduler's thread alone.
        batch_tiles: at most, in one batch.
        host_results: features are wanted in host memory, pinned where the backend is on a GPU,
            rather than on the backend's device.
        depth: batches that may be on their way at once: one runs, the others are uploaded. On a
            CPU a batch is done before the next is made.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, backend: VisionBackend, batch_tiles: int, host_results: bool = False,
                 depth: int = 2) -> None:
        if not 1 <= batch_tiles <= backend.max_tiles:
            raise ValueError(f'found batches of {batch_tiles} tiles; expected 1 to '
                             f'{backend.max_tiles}, what the backend takes; change one of both')
        if depth < 1:
            raise ValueError(f'found a depth of {depth} batches; expected at least 1; 2 lets one '
                             'be uploaded while another runs')
        self._backend = backend
        self._work = TileWork(batch_tiles, depth)
        self._transfer = transfer_to(backend.device, host_results)
        self._worker = threading.Thread(target=self._serve, daemon=True, name='vision')
        self._worker.start()
        atexit.register(self.close, EXIT_SECONDS)

    @property
    def backend(self) -> VisionBackend:
        """What it was made with; for its figures."""
        return self._backend

    def flow(self) -> Flow:
        """A request: its images are encoded in order, and requests get equal shares."""
        return Flow()

    def submit(self, tiles: np.ndarray, flow: Flow,
               uploaded: Callable[[], None]) -> 'Future[torch.Tensor]':
        """Queue an image. From any thread.

        Args:
            tiles: uint8 [n, side, side, 3], n at least 1; pinned, if the upload is to overlap.
                Nobody may write to them before `uploaded`.
            flow: the request that it belongs to, from `flow()`.
            uploaded: called exactly once, when `tiles` is not needed any more: the device has
                them, or they failed or were cancelled, or this very call raises. Called by a
                thread of the scheduler, the one that cancels or closes, or this one; on a GPU
                maybe a moment after the future is done. What it raises is logged.

        Returns:
            [n * tokens, hidden] in the backend's dtype, in memory of its own. It is complete when
            the future is done, so no stream has to wait for it; who reads it on a stream that is
            not the device's default one calls `record_stream` before dropping it. The future can
            be cancelled until it is done.

        Raises:
            ValueError: the tiles are none, of another size, or not uint8.
            SchedulerClosed: after `close`.
        """
        try:
            job = ImageJob(flow, checked_tiles(tiles, self._backend.side), uploaded)
            self._work.put(job)
        except BaseException:
            call_safely(uploaded)
            raise
        return job.future

    async def encode(self, tiles: np.ndarray, flow: Flow,
                     uploaded: Callable[[], None]) -> torch.Tensor:
        """`submit`, awaited, on any event loop. When the task is cancelled, so is the image."""
        return await asyncio.wrap_future(self.submit(tiles, flow, uploaded))

    def figures(self) -> SchedulerFigures:
        """The numbers of now. From any thread."""
        return self._work.figures()

    def close(self, seconds: Optional[float] = None) -> None:
        """Let the batches on their way finish, and fail every image that still waits.

        Args:
            seconds: to wait for each thread at most; None for as long as it takes.
        """
        atexit.unregister(self.close)
        self._work.end('the vision scheduler is closed; expected it open; close it when no '
                       'request is left', waiting_only=True)
        if threading.current_thread() is not self._worker:
            self._worker.join(seconds)
            self._transfer.join(seconds)

    def _serve(self) -> None:
        try:
            while self._serve_batch():
                pass
        except BaseException as error:  # a bug, a lost device, SystemExit: nobody may hang for it
            self._die(error)
        finally:
            self._transfer.close()

    def _serve_batch(self) -> bool:
        # a call for each: while the thread waits, it holds nothing of the batch before
        batch = self._work.next_batch()
        if batch is None:
            return False
        tiles, error = _outcome(self._upload, batch)
        if error is not None:  # without tiles there is nothing to run alone
            self._work.finished(batch, error)
            return True

        def finished(error: Optional[Exception]) -> None:
            self._or_die(self._work.finished, batch, error)

        with self._transfer.computing():
            self._transfer.finish(tiles, self._encode(batch, tiles), finished)
        return True

    def _upload(self, batch: TileBatch) -> torch.Tensor:
        # What fails on the way fails all that follows, too: `finished` will hear of it.
        def uploaded(_: Optional[Exception]) -> None:
            self._or_die(self._work.uploaded, batch)

        try:
            return self._transfer.upload(
                [part.job.tiles[part.first:part.last] for part in batch.parts], uploaded)
        except BaseException:
            self._work.uploaded(batch)
            raise

    def _encode(self, batch: TileBatch, tiles: torch.Tensor) -> Outputs:
        """Issue a batch; if it fails, each of its images alone."""
        outputs, error = _outcome(self._issue, batch.parts, tiles)
        if error is None:
            batch.encoded.extend(batch.parts)
            return outputs
        logger.warning('the images of a batch of %d tiles are run one by one', batch.count)
        outputs = []
        counts = [part.last - part.first for part in batch.parts]
        for part, alone in zip(batch.parts, tiles.split(counts)):
            if part.job.future.done():
                continue  # an earlier part of it failed, or it was cancelled
            output, error = _outcome(self._issue, [part], alone)
            if error is None:
                batch.encoded.append(part)
                outputs += output
            else:
                self._work.fail(part.job, error)
        return outputs

    def _issue(self, parts: Sequence[Part[ImageJob]], tiles: torch.Tensor) -> Outputs:
        row = (self._backend.tokens, self._backend.hidden)
        fresh = list(dict.fromkeys(part.job for part in parts if part.job.features is None))
        for job, features in zip(fresh, self._transfer.features(
                [(job.count, *row) for job in fresh], self._backend.dtype)):
            job.features = features
        features = [part.job.features[part.first:part.last] for part in parts]
        outputs = self._transfer.outputs(features)
        self._backend.encode(tiles, outputs)
        return list(zip(outputs, features))

    def _or_die(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException as failure:  # what a callback of a future lets through
            self._die(failure)

    def _die(self, error: BaseException) -> None:
        logger.critical('the vision scheduler ends', exc_info=error)
        self._work.end(f'the vision scheduler ended: {type(error).__name__}: {error}; expected '
                       'it to run; its log has the reason, start anew', waiting_only=False)


def _outcome(function: Callable[..., Any], *arguments: Any) -> Tuple[Any, Optional[Exception]]:
    """What a function returns, or the error that it raises: whatever a model raises is for the
    requests concerned, and nobody else's."""
    try:
        return function(*arguments), None
    except Exception as error:
        logger.warning('a batch failed, or an image of it', exc_info=True)
        _forget_traceback(error)
        return None, error


def _forget_traceback(error: BaseException) -> None:
    """Whoever keeps the error would keep all frames with it, and the memory of the batch."""
    chain: List[Optional[BaseException]] = [error]
    seen: Set[int] = set()
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += [link.__cause__, link.__context__]
