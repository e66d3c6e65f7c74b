"""Tiles to where a backend computes and features to where they are wanted, by kind of device."""
import contextlib
import queue
import threading
from typing import (Any, Callable, ContextManager, Iterator, List, Optional, Protocol, Sequence,
                    Tuple)

import numpy as np
import torch

Then = Callable[[Optional[Exception]], None]
# what a backend has written, and where it goes
Outputs = List[Tuple[torch.Tensor, torch.Tensor]]


class Transfer(Protocol):
    """What the scheduler's thread calls; other threads call `join` at most.

    `then` is called once, from any thread, with the error that made what it waited for impossible,
    or None. It raises nothing.
    """

    def upload(self, tiles: Sequence[np.ndarray], then: Then) -> torch.Tensor:
        """Bring tiles to the device.

        Args:
            tiles: uint8 [n_i, side, side, 3], each in one piece.
            then: when the arrays may be written to. Not called where this raises: they may be
                then, too.

        Returns:
            [sum(n_i), side, side, 3]; to be read inside the next `computing`, and handed to the
            `finish` in it.
        """
        ...

    def features(self, shapes: Sequence[Sequence[int]],
                 dtype: torch.dtype) -> List[torch.Tensor]:
        """Memory for the features of images, where they are wanted; a piece for each image."""
        ...

    def outputs(self, features: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Where a backend is to write them: tensors of the same shapes, maybe the same."""
        ...

    def computing(self) -> ContextManager[None]:
        """For a backend's calls, and those of `features`, `outputs` and `finish`."""
        ...

    def finish(self, tiles: torch.Tensor, outputs: Outputs, then: Then) -> None:
        """Bring outputs to their features.

        Args:
            tiles: what `upload` returned; from here on not the caller's to keep.
            outputs: what `outputs` returned, and for which features.
            then: when the features are complete, for all streams, and for the host.
        """
        ...

    def close(self) -> None:
        """Begin nothing more; what was begun is done."""
        ...

    def join(self, seconds: Optional[float]) -> None:
        """Wait, after `close`, until all `then` were called, but not for the thread that calls."""
        ...


def transfer_to(device: torch.device, host_results: bool) -> Transfer:
    """The right one for a device.

    Args:
        host_results: features are wanted in (pinned) host memory.
    """
    if device.type == 'cuda':
        return CudaToHostTransfer(device) if host_results else CudaTransfer(device)
    return HostTransfer()


class HostTransfer:
    """For a backend on the CPU: everything is done when a call returns."""

    def __init__(self) -> None:
        # The same memory for every batch: the system hands out fresh memory page by page.
        self._staging = torch.empty(0, dtype=torch.uint8)

    def upload(self, tiles: Sequence[np.ndarray], then: Then) -> torch.Tensor:
        count = sum(map(len, tiles))
        if len(self._staging) < count:
            self._staging = torch.empty((count, *tiles[0].shape[1:]), dtype=torch.uint8)
        staged = self._staging[:count]
        np.concatenate(tiles, out=staged.numpy())
        then(None)
        return staged

    def features(self, shapes: Sequence[Sequence[int]],
                 dtype: torch.dtype) -> List[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype) for shape in shapes]

    def outputs(self, features: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return list(features)

    def computing(self) -> ContextManager[None]:
        return torch.no_grad()

    def finish(self, tiles: torch.Tensor, outputs: Outputs, then: Then) -> None:
        then(None)

    def close(self) -> None:
        pass

    def join(self, seconds: Optional[float]) -> None:
        pass


class EventWatcher:
    """A thread that waits for CUDA events, in the order in which they come, and then calls
    something. With events made by `torch.cuda.Event(blocking=True)` it sleeps meanwhile."""

    def __init__(self, name: str) -> None:
        self._entries: 'queue.SimpleQueue[Optional[Tuple[torch.cuda.Event, Then]]]' = \
            queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name=name)
        self._thread.start()

    def add(self, event: torch.cuda.Event, then: Then) -> None:
        """Call `then` after an event; it raises nothing."""
        self._entries.put((event, then))

    def close(self) -> None:
        """End after the events that came so far."""
        self._entries.put(None)

    def join(self, seconds: Optional[float]) -> None:
        """Wait until it has ended, but not in its own thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        # a call for each: nothing that an entry holds outlives it while there is no other
        entry = self._entries.get()
        if entry is None:
            return False
        event, then = entry
        then(_wait_for(event))
        return True


class CudaTransfer:
    """For a backend on a GPU: the upload of one batch overlaps the computation of another.

    The host never waits in it. Memory that two streams use is held until an event behind both has
    been waited for, so the allocator never gives it away too early. Features are the caller's from
    then on: their memory belongs to the default stream. Whoever reads them on another calls
    `record_stream` before dropping them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._upload = torch.cuda.Stream(device)
        self._compute = torch.cuda.Stream(device)
        self._default = torch.cuda.default_stream(device)
        # weights may still be on their way there
        self._compute.wait_stream(torch.cuda.current_stream(device))
        self._uploads = EventWatcher('vision-uploads')
        self._results = EventWatcher('vision-results')

    def upload(self, tiles: Sequence[np.ndarray], then: Then) -> torch.Tensor:
        counts = [len(array) for array in tiles]
        with torch.cuda.stream(self._upload):
            staged = torch.empty((sum(counts), *tiles[0].shape[1:]), dtype=torch.uint8,
                                 device=self._device)
            try:
                for part, array in zip(staged.split(counts), tiles):
                    part.copy_(torch.from_numpy(array), non_blocking=True)
                uploaded = _record(self._upload)
            except RuntimeError:
                self._upload.synchronize()  # some copies may be under way
                raise
        self._uploads.add(uploaded, then)
        return staged

    def features(self, shapes: Sequence[Sequence[int]],
                 dtype: torch.dtype) -> List[torch.Tensor]:
        # Of the default stream, where they are read and freed: `record_stream` took 13 us for each
        # image. A batch holds them until it has ended, also where nobody wants them any more.
        if not shapes:
            return []
        with torch.cuda.stream(self._default):
            features = [torch.empty(shape, dtype=dtype, device=self._device) for shape in shapes]
        # who had the memory before may still read it there
        self._compute.wait_stream(self._default)
        return features

    def outputs(self, features: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return list(features)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        self._compute.wait_stream(self._upload)
        with torch.no_grad(), torch.cuda.stream(self._compute):
            yield

    def finish(self, tiles: torch.Tensor, outputs: Outputs, then: Then) -> None:
        self._when_done(self._compute, [tiles], then)

    def _when_done(self, stream: torch.cuda.Stream, held: List[Any], then: Then) -> None:
        """Call `then` behind all that was issued to a stream, and hold what that reads and writes
        until then."""
        def done(error: Optional[Exception]) -> None:
            held.clear()
            then(error)

        self._results.add(_record(stream), done)

    def close(self) -> None:
        self._uploads.close()
        self._results.close()

    def join(self, seconds: Optional[float]) -> None:
        self._uploads.join(seconds)
        self._results.join(seconds)


class CudaToHostTransfer(CudaTransfer):
    """The same with features in pinned host memory, copied on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._download = torch.cuda.Stream(device)

    def features(self, shapes: Sequence[Sequence[int]],
                 dtype: torch.dtype) -> List[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype, pin_memory=True) for shape in shapes]

    def outputs(self, features: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        counts = [len(part) for part in features]
        together = torch.empty((sum(counts), *features[0].shape[1:]), dtype=features[0].dtype,
                               device=self._device)
        return list(together.split(counts))

    def finish(self, tiles: torch.Tensor, outputs: Outputs, then: Then) -> None:
        self._download.wait_stream(self._compute)
        with torch.cuda.stream(self._download):
            for output, features in outputs:
                features.copy_(output, non_blocking=True)
        self._when_done(self._download, [tiles, *outputs], then)


def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event behind all that was issued to a stream, for a thread to sleep on."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


def _wait_for(event: torch.cuda.Event) -> Optional[Exception]:
    """The error of what an event stands behind: an illegal access, a lost GPU."""
    try:
        event.synchronize()
    except RuntimeError as error:
        return error
    return None
