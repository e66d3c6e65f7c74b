"""A vision backend that replays CUDA graphs where they pay."""
import logging
import threading
import time
from collections import Counter
from typing import Dict, Iterable, Optional, Sequence, Set

import torch

from lmdeploy_ext.vision.backend import VisionBackend, check, fill
from lmdeploy_ext.vision.figures import info_log
from lmdeploy_ext.vision.graph_capture import (CapturedGraph, CaptureFailed, CudaGraphRunner,
                                               GraphRunner)
from lmdeploy_ext.vision.graph_figures import GraphFigures
from lmdeploy_ext.vision.graph_plan import Costs, Plans, Slice, next_bucket
from lmdeploy_ext.vision.parts import part_of

logger = logging.getLogger(__name__)
BUCKETS = tuple(range(1, 9))
_MIB = 1 << 20
_SEEN_ENOUGH = 2


class GraphBackend(VisionBackend):
    """Batches of few tiles replay graphs, padded to the next batch size where that is faster;
    larger ones run as they are, or in slices. Measured times decide; see `graph_plan`.

    A graph that cannot be captured, or would not fit, is told in the log, and its batches
    run without it. See `VisionBackend` for the attributes.

    Args:
        vit: `InternViT`, or what behaves like it (compiled, for instance), on a CUDA device.
        buckets: batch sizes to capture; those above `max_tiles` are left out.
        max_tiles: in one call.
        limit_bytes: of GPU memory that the graphs may hold.
        lazily: capture a batch size when a second batch of it comes, which then waits for that.
            Otherwise all are captured here: before the engine takes the memory.
        runner: captures and times graphs in place of CUDA.

    Raises:
        ValueError: no CUDA device, or no usable bucket.
    """

    def __init__(self, vit: torch.nn.Module, buckets: Sequence[int] = BUCKETS,
                 max_tiles: int = 64, limit_bytes: int = 1024 * _MIB, lazily: bool = False,
                 runner: Optional[GraphRunner] = None) -> None:
        self._vit, self._lazily = vit, lazily
        self.device, self.dtype = vit.table.device, vit.table.dtype
        self.side, self.tokens, self.hidden = vit.side, vit.tokens, vit.hidden
        self.max_tiles = max_tiles
        self._wanted = _usable(buckets, max_tiles)
        if runner is None and self.device.type != 'cuda':
            raise ValueError(f'CUDA graphs of a model on {self.device}; they need a CUDA device: '
                             f'use EagerBackend (LMDEPLOY_EXT_VISION=eager) here')
        self._runner = runner or CudaGraphRunner(vit, max(self._wanted))
        self._limit_bytes, self._bytes = limit_bytes, self._runner.held_bytes()
        self._graphs: Dict[int, CapturedGraph] = {}
        self._given_up: Set[int] = set()
        self._seen: Counter = Counter()
        self._lock = threading.Lock()
        self._captures, self._capture_seconds = 0, 0.0
        # by bucket, 0 without a graph: slices, their tiles, and what they were padded by
        self._runs, self._tiles, self._padding = Counter(), Counter(), Counter()
        self._eager = {tiles: self._runner.eager_seconds(tiles) for tiles in _powers(max_tiles)}
        if not lazily:
            self._capture(self._wanted)
        self._plan()

    @torch.no_grad()
    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """See `VisionBackend`. `out` is filled on the current stream before the next replay can
        overwrite what this one wrote. A capture, with `lazily`, makes the host wait.

        Raises:
            ValueError: `tiles` or `out` are not what the backend takes.
        """
        check(self, tiles, out)
        if self._lazily:
            self._see(len(tiles))
        start = 0
        with self._runner.turn():
            for part in self._plans.plan(len(tiles)):
                stop = start + part.tiles
                fill(part_of(out, start, stop), self._run(part, tiles[start:stop]))
                start = stop

    def figures(self) -> GraphFigures:
        """The numbers so far; from any thread."""
        with self._lock:
            replays = {bucket: runs for bucket, runs in sorted(self._runs.items()) if bucket}
            return GraphFigures(graphs=len(self._graphs), bytes=self._bytes,
                                limit_bytes=self._limit_bytes, captures=self._captures,
                                capture_seconds=self._capture_seconds,
                                given_up=len(self._given_up), replays=sum(replays.values()),
                                replays_by_bucket=replays,
                                replayed_tiles=sum(self._tiles.values()) - self._tiles[0],
                                padded_tiles=sum(self._padding.values()),
                                eager_runs=self._runs[0], eager_tiles=self._tiles[0])

    def _run(self, part: Slice, tiles: torch.Tensor) -> torch.Tensor:
        """Features [n, tokens, hidden] that hold until the next call."""
        with self._lock:
            kind = part.bucket or 0
            self._runs[kind] += 1
            self._tiles[kind] += part.tiles
            self._padding[kind] += part.padding
        return self._vit(tiles) if part.bucket is None else self._graphs[part.bucket].replay(tiles)

    def _see(self, tiles: int) -> None:
        """Count a batch for the bucket that fits it, and capture that when it is time to."""
        bucket = next_bucket(tiles, [size for size in self._wanted if size not in self._given_up])
        if bucket is None or bucket in self._graphs:
            return
        self._seen[bucket] += 1
        if self._seen[bucket] >= _SEEN_ENOUGH:
            self._capture([bucket])
            self._plan()

    def _plan(self) -> None:
        seconds = {bucket: graph.seconds for bucket, graph in self._graphs.items()}
        self._plans = Plans(Costs(seconds, self._eager), self.max_tiles)
        times = ', '.join(f'{bucket} in {1000 * taken:.1f} ms'
                          for bucket, taken in sorted(seconds.items()))
        info_log.info('vision: CUDA graphs by batch size: %s; they hold %.0f MiB',
                      times or 'none', self._bytes / _MIB)

    def _capture(self, buckets: Iterable[int]) -> None:
        """Capture graphs, the largest first: then the others need no further memory."""
        for bucket in sorted(buckets, reverse=True):
            start = time.perf_counter()
            try:
                graph = self._runner.capture(bucket)
            except CaptureFailed as error:
                logger.warning('vision: no CUDA graph for batch size %d, which runs without: %s',
                               bucket, error)
                self._give_up(bucket)
                continue
            held = self._runner.held_bytes()
            if held > self._limit_bytes:
                self._drop(bucket, held)
                continue
            with self._lock:
                self._graphs[bucket], self._bytes = graph, held
                self._captures += 1
                self._capture_seconds += time.perf_counter() - start

    def _drop(self, bucket: int, held: int) -> None:
        """Give up a graph that does not fit. What it took comes back with all graphs only, so
        those of before are captured again."""
        logger.warning('vision: no CUDA graph for batch size %d, which runs without: with it all '
                       'graphs hold %.0f MiB of at most %.0f', bucket, held / _MIB,
                       self._limit_bytes / _MIB)
        self._give_up(bucket)
        with self._lock:
            before = list(self._graphs)
            self._graphs.clear()
        self._runner.release()
        with self._lock:
            self._bytes = self._runner.held_bytes()
        self._capture(before)

    def _give_up(self, bucket: int) -> None:
        with self._lock:
            self._given_up.add(bucket)


def _usable(buckets: Sequence[int], max_tiles: int) -> Sequence[int]:
    """Those of at most `max_tiles`, each once, in order."""
    usable = sorted({bucket for bucket in buckets if bucket <= max_tiles})
    if not usable or usable[0] < 1:
        raise ValueError(f'graph sizes {list(buckets)} for batches of at most {max_tiles} tiles; '
                         f'expected some from 1 to {max_tiles}')
    return usable


def _powers(most: int) -> Sequence[int]:
    """1, 2, 4 and so on, and `most`."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]
