"""Images per minute (QPM) in steady state, and latency percentiles, from the times at which
answers were complete.

Decoding and preprocessing are included, since a time runs from the image's admission to its
answer. Left out are the warm-up (the first answers of each session: model load, first allocations)
and the run-down (the last `concurrency` answers, when no further image waits and the engine runs
half empty).
"""
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import numpy as np

# Windows of one session: enough for a spread; and how many rounds of `concurrency` a window must
# hold at least, so that batches which finish at once do not make some windows look fast and others
# slow.
WINDOWS = 8
ROUNDS = 4
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Completion:
    """One answered image.

    Attributes:
        id: the image's id.
        session: (round, process in that round); a resumed run has several. Times of different
            sessions do not compare.
        started, finished: seconds on the session's monotonic clock; from admission to the answer.
        computed: False where the answer was not computed: an identical file's answer, or an error.
    """
    id: str
    session: Tuple[int, int]
    started: float
    finished: float
    computed: bool = True


@dataclass(frozen=True)
class Throughput:
    """Images per minute in steady state.

    Attributes:
        qpm: median over the windows.
        low, high: slowest and fastest window.
        windows: the windows' QPM, in order of time.
        images, seconds: what the windows cover together.
        reason: why there is no figure (`qpm` None), else None.
    """
    qpm: Optional[float]
    low: Optional[float]
    high: Optional[float]
    windows: Tuple[float, ...]
    images: int
    seconds: float
    reason: Optional[str] = None


@dataclass(frozen=True)
class Latency:
    """Seconds from admission to answer at a stated number of requests in flight; None where there
    is no image."""
    concurrency: int
    images: int
    p50: Optional[float]
    p95: Optional[float]
    p99: Optional[float]


def throughput(completions: Sequence[Completion], concurrency: int, warmup: int) -> Throughput:
    """QPM in steady state.

    Each session is cut into about `WINDOWS` windows of equally many answers; a short one into
    fewer.

    Args:
        completions: in any order.
        concurrency: requests that were kept in flight.
        warmup: first answers of each session to leave out.
    """
    windows: List[float] = []
    images, seconds = 0, 0.0
    for number in sorted({completion.session for completion in completions}):
        finished = _steady(completions, number, concurrency, warmup)
        edges = _window_edges(len(finished), concurrency)
        for first, last in zip(edges[:-1], edges[1:]):
            took = finished[last] - finished[first]
            if took > 0:
                windows.append(60 * (last - first) / took)
                images += last - first
                seconds += took
    if not windows:
        least = max(warmup, 1) + concurrency + 1
        return Throughput(
            None, None, None, (), 0, 0.0,
            f'{len(completions)} answers are too few for a steady state; at least {least} in one '
            f'session are needed with warm-up {warmup} and concurrency {concurrency}')
    return Throughput(float(np.median(windows)), min(windows), max(windows), tuple(windows),
                      images, seconds)


def latency(completions: Sequence[Completion], concurrency: int, warmup: int) -> Latency:
    """p50, p95 and p99 of the computed answers after each session's warm-up."""
    seconds = _latencies(completions, warmup)
    values = np.percentile(seconds, PERCENTILES).tolist() if seconds else [None] * len(PERCENTILES)
    return Latency(concurrency, len(seconds), *values)


def latency_curve(completions: Sequence[Completion], warmup: int) -> Tuple[float, ...]:
    """Seconds at 0, 1, … 100 % of the computed answers after warm-up; empty without any."""
    seconds = _latencies(completions, warmup)
    return tuple(np.percentile(seconds, range(101)).tolist()) if seconds else ()


def _latencies(completions: Sequence[Completion], warmup: int) -> List[float]:
    """Seconds from admission to answer, of the computed answers after each session's warm-up."""
    seconds: List[float] = []
    for number in {completion.session for completion in completions}:
        session = sorted((c for c in completions if c.session == number and c.computed),
                         key=lambda completion: completion.finished)
        seconds += [completion.finished - completion.started for completion in session[warmup:]]
    return seconds


def _steady(completions: Sequence[Completion], session: int, concurrency: int,
            warmup: int) -> List[float]:
    """A session's completion times between warm-up and run-down, rising; the first is where the
    clock starts."""
    finished = sorted(c.finished for c in completions if c.session == session and c.computed)
    # The last warm-up answer's time is the start of the first window.
    return finished[max(warmup - 1, 0):max(len(finished) - concurrency, 0)]


def _window_edges(times: int, concurrency: int) -> List[int]:
    """Indices of the completion times that bound the windows; fewer than two where there is no
    window.

    A window is a multiple of `concurrency` wide, so that bursts of a full batch fall whole into
    one of them.
    """
    answers = times - 1
    if answers < 1:
        return []
    width = max(ROUNDS, answers // WINDOWS // concurrency) * concurrency
    return list(range(0, answers + 1, width)) if answers >= width else [0, answers]
