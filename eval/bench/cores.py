"""Images a second on one thread and on as many as there are cores, in the pipeline's own pool."""
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from ...vl.image_workers import ImageWorkers

LEAST = 8  # images a thread and measurement: of few, the last one's end is a large share


def cores_rows(ways: Sequence[Any], path: Path, image: str, cores: int, seconds: float,
               rounds: int) -> List[Dict[str, Any]]:
    """One row a way: images a second, and the share of linear scaling.

    Each round measures every way on one thread and on all, back to back, so that a machine whose
    clock changes changes both; the share is the median of the rounds' shares.

    Args:
        image: what the rows call the file.
        seconds: about how long one measurement takes.
    """
    rates: Dict[str, List[List[float]]] = {way.name: [] for way in ways}
    for number in range(rounds):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            each = max(LEAST, round(seconds / way.prepare(path).total))
            rates[way.name].append(
                [throughput(way, path, threads, each) for threads in (1, cores)])
    rows = []
    for way in ways:
        one, every = np.transpose(rates[way.name])
        rows.append({
            'part': 'cores',
            'image': image,
            'way': way.name,
            'cores': cores,
            'one_thread': round(float(np.median(one)), 1),
            'all_cores': round(float(np.median(every)), 1),
            'share_of_linear': round(float(np.median(every / one)) / cores, 3),
            'runs': rounds
        })
    return rows


def throughput(way: Any, path: Path, threads: int, each: int) -> float:
    """Images a second when `threads` threads prepare a file `each * threads` times."""
    workers = ImageWorkers(threads)
    try:
        # What a thread sets up once is not measured.
        list(workers.pool.map(way.prepare, [path] * (2 * threads)))
        start = time.perf_counter()
        list(workers.pool.map(way.prepare, [path] * (each * threads)))
        return each * threads / (time.perf_counter() - start)
    finally:
        workers.close()
