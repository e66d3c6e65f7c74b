"""How a batch is run: in which slices, and each of them by which CUDA graph or without one.

A graph runs one batch size, its bucket; fewer tiles are padded to it. Graphs save launches, which
decide over small batches only, so neither the next bucket nor the largest is always the best.
Here the cheapest way is found from measured times. Numbers only; nothing here knows CUDA.
"""
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

import numpy as np


@dataclass(frozen=True)
class Slice:
    """Consecutive tiles that run together.

    Attributes:
        tiles: how many.
        bucket: batch size of the graph; None without a graph.
    """
    tiles: int
    bucket: Optional[int] = None

    @property
    def padding(self) -> int:
        """Tiles that are computed and thrown away."""
        return 0 if self.bucket is None else self.bucket - self.tiles


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds, all above zero.

    Attributes:
        graphs: of one replay, by bucket; may be empty.
        eager: without a graph, by number of tiles; at least one.

    Raises:
        ValueError: no eager time, or a number that is not above zero.
    """
    graphs: Mapping[int, float]
    eager: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.eager:
            raise ValueError('no eager time to plan with; measure at least one batch size')
        for tiles, seconds in (*self.graphs.items(), *self.eager.items()):
            if tiles < 1 or not 0 < seconds < float('inf'):
                raise ValueError(f'{tiles} tiles in {seconds} s; expected at least 1 tile and a '
                                 f'time above zero')

    def eager_seconds(self, most: int) -> List[float]:
        """Eager times of 1 to `most` tiles: linear between the measured sizes, constant below the
        smallest, and above the largest as many times longer as there are more tiles."""
        sizes = sorted(self.eager)
        seconds = [self.eager[size] for size in sizes]
        counts = np.arange(1, most + 1)
        beyond = np.maximum(counts / sizes[-1], 1)
        return (np.interp(counts, sizes, seconds) * beyond).tolist()


class Plans:
    """The cheapest plans of batches of 1 to `most` tiles; slices follow each other.

    Dynamic programming over the number of tiles. Of ways that cost the same, those of fewer
    slices, then those that pad less, are taken.

    Args:
        costs: what a slice takes.
        most: tiles of the largest batch.
    """

    def __init__(self, costs: Costs, most: int) -> None:
        eager = costs.eager_seconds(most)
        graphs = sorted(costs.graphs.items())
        # by tiles: seconds, slices, padded tiles; and the slice that the best way begins with
        best: List[Tuple[float, int, int]] = [(0.0, 0, 0)]
        self._first: List[Slice] = []
        for tiles in range(1, most + 1):
            ways = [(seconds, Slice(min(bucket, tiles), bucket)) for bucket, seconds in graphs]
            ways += [(seconds, Slice(count)) for count, seconds in enumerate(eager[:tiles], 1)]
            total, first = min(((_add(seconds, part, best[tiles - part.tiles]), part)
                                for seconds, part in ways), key=lambda way: way[0])
            best.append(total)
            self._first.append(first)
        self._seconds = [total[0] for total in best]

    def plan(self, tiles: int) -> Tuple[Slice, ...]:
        """The slices of a batch, in order; their tiles add up to `tiles`, 1 to `most`."""
        slices = []
        while tiles:
            slices.append(self._first[tiles - 1])
            tiles -= slices[-1].tiles
        return tuple(slices)

    def seconds(self, tiles: int) -> float:
        """What that plan takes by the measured times."""
        return self._seconds[tiles]


def next_bucket(tiles: int, buckets: Sequence[int]) -> Optional[int]:
    """The smallest bucket that so many tiles fit into; None above the largest."""
    return min((bucket for bucket in buckets if bucket >= tiles), default=None)


def _add(seconds: float, part: Slice, rest: Tuple[float, int, int]) -> Tuple[float, int, int]:
    return seconds + rest[0], 1 + rest[1], part.padding + rest[2]
