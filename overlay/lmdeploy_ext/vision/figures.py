"""The numbers of the vision encoder: one record for the metrics endpoint, one line for the log."""
import logging
import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from lmdeploy_ext.vision.backend import VisionBackend
from lmdeploy_ext.vision.feature_cache import CacheFigures
from lmdeploy_ext.vision.graph_figures import GraphFigures
from lmdeploy_ext.vision.scheduler_figures import SchedulerFigures
from lmdeploy_ext.vision.shared_work import SharedFigures

# LMDeploy's own, which the server's `--log-level INFO` and `log_level` of `pipeline` turn up:
# neither would show what a logger of this module said at INFO.
info_log = logging.getLogger('lmdeploy')
_MIB = 1 << 20


@dataclass(frozen=True)
class VisionFigures:
    """What the parts have counted since the start, and what is there now.

    Attributes:
        cache: None without a feature cache.
        graphs: of each replica; empty without CUDA graphs.
        waiting_feature_bytes: on the GPU, of requests that the language model has not begun.
    """
    scheduler: SchedulerFigures
    cache: Optional[CacheFigures]
    shared: SharedFigures
    graphs: Tuple[GraphFigures, ...]
    waiting_feature_bytes: int


def graph_figures(backend: VisionBackend) -> Tuple[GraphFigures, ...]:
    """Of every replica that has graphs."""
    replicas = getattr(backend, 'backends', (backend, ))
    return tuple(replica.figures() for replica in replicas if hasattr(replica, 'figures'))


class FigureLog:
    """Writes a line of figures at INFO, at most one in so many seconds, and none while idle:
    whoever has finished a piece of work asks for it.

    Args:
        figures: gives the numbers.
        seconds: between two lines.
        clock: in seconds.
    """

    def __init__(self, figures: Callable[[], VisionFigures], seconds: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._figures, self._seconds, self._clock = figures, seconds, clock
        self._since = clock()
        self._before: Optional[VisionFigures] = None
        self._lock = threading.Lock()

    def written_if_due(self) -> bool:
        """Write the line of the time since the last one, if that is long enough ago."""
        # the common case, without the lock: this is called for every request
        if self._clock() - self._since < self._seconds or not info_log.isEnabledFor(logging.INFO):
            return False
        with self._lock:
            now = self._clock()
            seconds = now - self._since
            if seconds < self._seconds:
                return False
            figures, before = self._figures(), self._before
            self._since, self._before = now, figures
        info_log.info('%s', line(before, figures, seconds))
        return True


def line(before: Optional[VisionFigures], now: VisionFigures, seconds: float) -> str:
    """What happened between two records, so many seconds apart; None is the start."""
    done, past = now.scheduler, before and before.scheduler
    tiles, images, batches, failed, queued, ran = (
        getattr(done, name) - getattr(past, name, 0)
        for name in ('tiles', 'images', 'batches', 'failed_images', 'queue_seconds',
                     'run_seconds'))
    parts = [
        f'vision: {tiles / seconds:.1f} tiles/s, {images} images, '
        f'{tiles / max(batches, 1):.1f} tiles a batch, '
        f'{1000 * queued / max(images, 1):.1f} ms queued, '
        f'{1000 * ran / max(batches, 1):.1f} ms a batch, busy {100 * ran / seconds:.0f} %, '
        f'{done.waiting_tiles} tiles wait'
    ]
    if failed:
        parts.append(f'{failed} images failed')
    if now.cache is not None:
        hits, misses = (getattr(now.cache, name) - getattr(before and before.cache, name, 0)
                        for name in ('hits', 'misses'))
        shared = now.shared.shared - (before.shared.shared if before else 0)
        parts.append(f'cache {hits} of {hits + misses} hit, {shared} shared, '
                     f'{now.cache.entries} entries in {now.cache.bytes / _MIB:.0f} MiB')
    for graphs, earlier in zip(now.graphs, before.graphs if before else (None, ) * len(
            now.graphs)):
        replays, padded, eager = (getattr(graphs, name) - getattr(earlier, name, 0)
                                  for name in ('replays', 'padded_tiles', 'eager_runs'))
        parts.append(f'{replays} of {replays + eager} runs by graph, {padded} tiles of padding, '
                     f'{graphs.graphs} graphs in {graphs.bytes / _MIB:.0f} MiB')
    return '; '.join(parts)
