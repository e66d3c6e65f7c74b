"""What the rooms hold: four sorts of rooms, and the furniture drawn for each.

The sorts differ in what decides the answer. `bedroom` and `shared` are ordinary rooms seen from
near. `hall` has rows of things of a bed's size, where a pillow tells a bed from a bench;
`bunkroom` has bunk beds and racks, where a ladder tells one from the other. In the last two the
deciding detail has a size in *pixels of the picture* that does not grow with the picture (in the
largest it is smaller): a large picture shows a larger hall. So nothing is lost at native size, and
much where a large picture is squeezed. The ordinary rooms are mostly plain cases: one bed, or a
dormitory. In halls two beds and three are the most frequent counts, so that each bed has to be
made out.
"""
from dataclasses import dataclass

import numpy as np

SORTS = {'bedroom': 0.16, 'shared': 0.24, 'hall': 0.38, 'bunkroom': 0.22}
BED_LIKE = ('bench', 'frame', 'low_table', 'sofa')
#: Beds in a hall and how often, where the answer is no and where it is yes.
HALL_COUNTS = (((0, 1, 2), (0.2, 0.35, 0.45)), ((3, 4, 5, 6), (0.55, 0.25, 0.12, 0.08)))
BEDS = ('single', 'double', 'bunk')


@dataclass(frozen=True)
class Order:
    """Attributes:
        sort: a key of `SORTS`.
        pieces: names of the main pieces, in random order.
        extras: how many ordinary pieces to add where there is room.
    """
    sort: str
    pieces: tuple[str, ...]
    extras: int

    def beds(self) -> int:
        """How many beds that makes."""
        return sum(name in BEDS for name in self.pieces)


def draw_order(rng: np.random.Generator) -> Order:
    """Draw a sort of room and its furniture."""
    sort = str(rng.choice(list(SORTS), p=list(SORTS.values())))
    furnish = {'bedroom': _bedroom, 'shared': _shared, 'hall': _hall, 'bunkroom': _bunkroom}[sort]
    pieces = furnish(rng)
    mixed = tuple(pieces[i] for i in rng.permutation(len(pieces)))
    return Order(sort, mixed, int(rng.integers(2, 7)))


def _any(rng: np.random.Generator, names, least: int, most: int) -> list[str]:
    """`least` to `most` of `names`, with repetition."""
    return [names[rng.integers(len(names))] for _ in range(rng.integers(least, most + 1))]


def _few(rng: np.random.Generator) -> int:
    """How many beds an ordinary room has where the answer is no."""
    return int(rng.choice(3, p=[0.28, 0.60, 0.12]))


def _many(rng: np.random.Generator) -> int:
    """How many beds an ordinary room has where the answer is yes."""
    return int(rng.choice([3, 4, 5, 6], p=[0.12, 0.28, 0.34, 0.26]))


def _bedroom(rng: np.random.Generator) -> list[str]:
    count = _few(rng)
    return _any(rng, ('single', 'double'), count, count) + _any(rng, BED_LIKE, 0, 2)


def _shared(rng: np.random.Generator) -> list[str]:
    chance = rng.random()
    if chance < 0.50:
        return ['bunk'] + _any(rng, ('single', 'double', 'bunk'), 0, 2) + _any(rng, BED_LIKE, 0, 1)
    if chance < 0.82:
        count = _many(rng)
        return _any(rng, ('single', 'single', 'single', 'double'), count, count)
    count = _few(rng)
    return _any(rng, ('single', 'double'), count, count) + _any(rng, BED_LIKE, 1, 2)


def _hall(rng: np.random.Generator) -> list[str]:
    counts, shares = HALL_COUNTS[int(rng.integers(2))]
    count = int(rng.choice(counts, p=shares))
    others = max(0, int(rng.integers(5, 8)) - count)
    kinds = ('bench', 'bench', 'bench', 'bench', 'frame', 'low_table')
    return ['single'] * count + _any(rng, kinds, others, others)


def _bunkroom(rng: np.random.Generator) -> list[str]:
    if rng.random() < 0.8:
        return _any(rng, ('bunk', ), 1, 3) + _any(rng, ('rack', ), 0, 2)
    return _any(rng, ('rack', ), 1, 2)
