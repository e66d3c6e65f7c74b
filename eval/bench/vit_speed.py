"""Milliseconds a batch, all ways in turn, and how near their features are to stock's."""
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np
import torch
from tqdm import tqdm

from lmdeploy_ext.vision.backend import VisionBackend, run

from .vit_ways import STOCK


@dataclass(frozen=True)
class Budget:
    """How often a batch size is measured.

    Attributes:
        seconds: rounds are repeated for so long, all ways together.
        least, most: rounds at least and at most, whatever the seconds; in a round each way has a
            turn.
        turn_seconds, turn_most: a turn is repeated for so long, at most so often, once at least.
    """
    seconds: float = 6.0
    least: int = 3
    most: int = 20
    turn_seconds: float = 0.1
    turn_most: int = 8


FULL = Budget()
QUICK = Budget(seconds=0.0, least=1, most=1, turn_seconds=0.0, turn_most=1)


def speed_rows(backends: Mapping[str, VisionBackend], sizes: Sequence[int],
               budget: Budget) -> List[Dict[str, Any]]:
    """One row a batch size and way; stock is among the ways."""
    rows = []
    for size in tqdm(sizes, desc='batch sizes', leave=False, disable=None):
        tiles = _tiles(backends[STOCK], size)
        expected = run(backends[STOCK], tiles)
        works = {name: _work(backend, tiles) for name, backend in backends.items()}
        samples = interleaved(works, budget)
        stock = float(np.median(samples[STOCK]))
        for name, backend in backends.items():
            median = float(np.median(samples[name]))
            rows.append({
                'part': 'speed',
                'tiles': size,
                'way': name,
                'ms': round(1000 * median, 3),
                'ms_quartiles': [round(1000 * float(end), 3)
                                 for end in np.percentile(samples[name], (25, 75))],
                'runs': len(samples[name]),
                'tiles_per_second': round(size / median, 1),
                'ratio': round(stock / median, 3),
                'cosine': round(_least_cosine(run(backend, tiles), expected), 6)
            })
    return rows


def interleaved(works: Mapping[str, Callable[[], float]],
                budget: Budget) -> Dict[str, List[float]]:
    """Seconds of each work, by its name: in each round every one has a turn, another first each
    time. The first call of a turn is not counted: caches are as another left them.

    Args:
        works: each runs once and returns the seconds that it took.
    """
    samples: Dict[str, List[float]] = {name: [] for name in works}
    names, start = list(works), time.perf_counter()
    for number in range(budget.most):
        if number >= budget.least and time.perf_counter() - start > budget.seconds:
            break
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            samples[name] += _turn(works[name], budget)
    return samples


def _turn(work: Callable[[], float], budget: Budget) -> List[float]:
    work()
    start, samples = time.perf_counter(), [work()]
    while (len(samples) < budget.turn_most
           and time.perf_counter() - start < budget.turn_seconds):
        samples.append(work())
    return samples


def _work(backend: VisionBackend, tiles: torch.Tensor) -> Callable[[], float]:
    """One batch, and the seconds of it: on a GPU by events, from an idle device on."""
    out = [torch.empty((len(tiles), backend.tokens, backend.hidden), dtype=backend.dtype,
                       device=backend.device)]

    def on_cpu() -> float:
        start = time.perf_counter()
        backend.encode(tiles, out)
        return time.perf_counter() - start

    def on_gpu() -> float:
        stream = torch.cuda.current_stream(backend.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream.synchronize()
        start.record(stream)
        backend.encode(tiles, out)
        end.record(stream)
        end.synchronize()
        return start.elapsed_time(end) / 1000

    return on_gpu if backend.device.type == 'cuda' else on_cpu


def _tiles(backend: VisionBackend, count: int) -> torch.Tensor:
    """Pixels of noise: on zeros a GPU is faster than on pictures."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(256, (count, backend.side, backend.side, 3), dtype=torch.uint8,
                         generator=generator).to(backend.device)


def _least_cosine(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of all rows of features, tile by tile: no large copies in float32."""
    return min(torch.cosine_similarity(ours.float(), theirs.float(), dim=-1).min().item()
               for ours, theirs in zip(found, expected))
