"""Milliseconds an image on one thread, all ways in turn: a busy machine disturbs them all."""
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np

from .fidelity import psnr
from .sample import Sample

TOKENS_A_TILE = 256
# A turn is at least so many counted calls in a row, at most so many, and between them so long.
TURN_LEAST, TURN_MOST, TURN_SECONDS = 3, 12, 0.05
Ways = Sequence[Any]  # Stock first, then Ours


@dataclass(frozen=True)
class Turns:
    """What the ways took on one file.

    Attributes:
        samples: of each way, by its name.
        cpu_share: of all the time, the share that this thread ran. Much below 1 other processes
            took the rest, and ways of few milliseconds look too good: they fit between.
    """
    samples: Dict[str, List[Sample]]
    cpu_share: float


def interleaved(ways: Ways, path: Path, seconds: float, least: int, most: int) -> Turns:
    """Prepare a file again and again: in each round every way has a turn, another first each time.

    The first call of a turn is not counted: it finds the caches as another way left them, while in
    service each way follows itself.

    Args:
        seconds: rounds are repeated for so long, but at least `least` and at most `most` times.
    """
    samples: Dict[str, List[Sample]] = {way.name: [] for way in ways}
    start, cpu_start = time.perf_counter(), time.thread_time()
    for number in range(most):
        if number >= least and time.perf_counter() - start > seconds:
            break
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            samples[way.name] += _turn(way, path)
    cpu_share = (time.thread_time() - cpu_start) / (time.perf_counter() - start)
    return Turns(samples, round(cpu_share, 2))


def _turn(way: Any, path: Path) -> List[Sample]:
    """One way's samples of one turn."""
    way.prepare(path)
    start = time.perf_counter()
    samples: List[Sample] = []
    while len(samples) < TURN_LEAST or (len(samples) < TURN_MOST
                                        and time.perf_counter() - start < TURN_SECONDS):
        samples.append(way.prepare(path))
    return samples


def size_rows(ways: Ways, path: Path, about: Mapping[str, Any], seconds: float, least: int,
              most: int) -> List[Dict[str, Any]]:
    """One row a way: medians of a file's times, and its tiles against upstream's.

    Args:
        about: what each row says of the file.
    """
    turns = interleaved(ways, path, seconds, least, most)
    samples = turns.samples
    stock_ms = _median([sample.total for sample in samples[ways[0].name]])
    upstream = ways[0].prepare(path, keep=True)
    return [{
        'part': 'size',
        **about, 'cpu_share': turns.cpu_share,
        'way': way.name,
        **_times(samples[way.name]), 'ratio': round(stock_ms / _median(
            [sample.total for sample in samples[way.name]]), 2),
        **_against(upstream, way.prepare(path, keep=True))
    } for way in ways]


def _times(samples: Sequence[Sample]) -> Dict[str, Any]:
    """Medians in milliseconds, the total's quartiles, and how many runs they are of."""
    low, high = np.percentile([1000 * sample.total for sample in samples], (25, 75))
    return {
        'decode_ms': round(_median([sample.decode for sample in samples]), 3),
        'cut_ms': round(_median([sample.cut for sample in samples]), 3),
        'hand_over_ms': round(_median([sample.hand_over for sample in samples]), 3),
        'total_ms': round(_median([sample.total for sample in samples]), 3),
        'total_quartiles_ms': [round(float(low), 3), round(float(high), 3)],
        'runs': len(samples)
    }


def _against(upstream: Sample, own: Sample) -> Dict[str, Any]:
    """Tiles, tokens, and where the tiles are as many as upstream's, how near their pixels are.

    `psnr_db` is null where tiles are not comparable and where they are identical.
    """
    comparable = own.tiles == upstream.tiles
    identical = comparable and bool(np.array_equal(own.pixels, upstream.pixels))
    return {
        'tiles': own.tiles,
        'tokens': own.tiles * TOKENS_A_TILE,
        'identical': identical,
        'psnr_db': round(psnr(own.pixels, upstream.pixels), 2)
        if comparable and not identical else None
    }


def _median(seconds: Sequence[float]) -> float:
    """Median in milliseconds."""
    return 1000 * float(np.median(seconds))
