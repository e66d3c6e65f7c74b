"""Capture and replay of CUDA graphs of a vision model, one for each batch size.

See https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. A graph repeats the same work on
the same addresses: tiles are copied to where it reads, features from where it writes.
"""
import statistics
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Callable, ContextManager, Iterator, List, Protocol

import torch

# torch allows one capture at a time in a process
_CAPTURE = threading.Lock()
_WARM_UPS = 2
_TIMED_RUNS = 5


class CaptureFailed(RuntimeError):
    """A graph could not be captured or run; the message is the first line of the reason."""


@dataclass(frozen=True)
class CapturedGraph:
    """A graph of one batch size.

    Attributes:
        replay: takes uint8 tiles [n, side, side, 3], n up to the batch size, and returns features
            [n, tokens, hidden] in memory that the next replay of any graph overwrites.
        seconds: a replay takes, the median of some.
    """
    replay: Callable[[torch.Tensor], torch.Tensor]
    seconds: float


class GraphRunner(Protocol):
    """What a pool of graphs needs of the device. Not for several threads at once."""

    def capture(self, bucket: int) -> CapturedGraph:
        """The graph of a batch size.

        Raises:
            CaptureFailed: it cannot be captured; everything else still works.
        """
        ...

    def release(self) -> None:
        """Give back all graphs and their memory; none of them may be replayed any more."""
        ...

    def held_bytes(self) -> int:
        """Device memory that all graphs hold together."""
        ...

    def eager_seconds(self, tiles: int) -> float:
        """What so many tiles take without a graph, the median of some runs."""
        ...

    def turn(self) -> ContextManager[None]:
        """Around the work of one batch: it begins on the device when the batch before has ended,
        also where that was issued to another stream."""
        ...


class CudaGraphRunner:
    """Graphs that share input, output and activations: one at a time is replayed.

    The largest captured first, the others need no further memory. Input and output lie outside of
    the graphs' pool, and nothing in it outlives a replay, so the order of replays is free.

    Args:
        vit: as `graph_pool.GraphBackend` takes it, on a CUDA device.
        most: the largest batch size.
    """

    def __init__(self, vit: torch.nn.Module, most: int) -> None:
        self._vit = vit
        self._device, dtype = vit.table.device, vit.table.dtype
        self._stream = torch.cuda.Stream(self._device)
        # of pixels like any: on zeros a GPU is faster than it will be
        self._tiles = self._random_tiles(most)
        self._features = torch.zeros((most, vit.tokens, vit.hidden), dtype=dtype,
                                     device=self._device)
        self._graphs: List[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle()
        self._idle = torch.cuda.current_stream(self._device).record_event()

    @torch.no_grad()
    def capture(self, bucket: int) -> CapturedGraph:
        """See `GraphRunner`. The host waits for the device, which is idle meanwhile.

        In the mode `thread_local` other threads, such as TurboMind's, may allocate, launch and
        wait for streams of theirs meanwhile; in the default mode that fails, for them and for us.
        Nobody can wait for the whole device or draw from torch's default generator on it during
        a capture: one at the start, before there is an engine, meets no such thread.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with _CAPTURE, self._on_own_stream():
                # libraries choose their kernels and take their workspaces before the capture
                for _ in range(_WARM_UPS):
                    self._compute(bucket)
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream,
                                      capture_error_mode='thread_local'):
                    self._compute(bucket)
                seconds = _median_seconds(graph.replay)
        except RuntimeError as error:  # of CUDA, out of memory included
            if not self._graphs:
                self._pool = torch.cuda.graph_pool_handle()  # the failed one may be unusable
            raise CaptureFailed((str(error).splitlines() or [type(error).__name__])[0]) from error
        self._graphs.append(graph)
        return CapturedGraph(partial(self._replay, graph), seconds)

    def release(self) -> None:
        """See `GraphRunner`."""
        torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # a pool that nobody uses any more cannot be used again
        self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()

    def held_bytes(self) -> int:
        """See `GraphRunner`. What other threads allocate meanwhile is not in it."""
        segments = torch.cuda.memory_snapshot()
        pool = sum(segment['total_size'] for segment in segments
                   if tuple(segment['segment_pool_id']) == tuple(self._pool)
                   and segment['device'] == self._device.index)
        return pool + self._tiles.nbytes + self._features.nbytes

    @torch.no_grad()
    def eager_seconds(self, tiles: int) -> float:
        """See `GraphRunner`."""
        pixels = self._random_tiles(tiles)
        with self._on_own_stream():
            self._vit(pixels)
            seconds = _median_seconds(lambda: self._vit(pixels))
            # activations of the largest batch are many gigabytes that the engine may want
            torch.cuda.empty_cache()
        return seconds

    @contextmanager
    def turn(self) -> Iterator[None]:
        """See `GraphRunner`."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._idle)
        try:
            yield
        finally:
            self._idle.record(stream)

    def _replay(self, graph: torch.cuda.CUDAGraph, tiles: torch.Tensor) -> torch.Tensor:
        self._tiles[:len(tiles)].copy_(tiles, non_blocking=True)
        graph.replay()
        return self._features[:len(tiles)]

    def _compute(self, bucket: int) -> None:
        self._features[:bucket].copy_(self._vit(self._tiles[:bucket]))

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """This runner's stream, after all work so far; the host waits at the end."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._stream.wait_event(self._idle)
        # the stream of before is current again even where ending a broken capture raises
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

    def _random_tiles(self, tiles: int) -> torch.Tensor:
        side = self._vit.side
        own = torch.Generator(self._device).manual_seed(tiles)  # nobody else's numbers change
        return torch.randint(256, (tiles, side, side, 3), dtype=torch.uint8, device=self._device,
                             generator=own)


def _median_seconds(work: Callable[[], object]) -> float:
    """What `work` takes on the current stream."""
    times = []
    for _ in range(_TIMED_RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return statistics.median(times)
