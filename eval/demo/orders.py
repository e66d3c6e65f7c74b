"""What the rooms hold: five sorts of rooms, and the furniture drawn for each.

The sorts differ in what decides the answer. `bedroom` and `shared` are ordinary rooms seen from near. `hall` has rows
of things of a bed's size, where a pillow tells a bed from a bench; `bunkroom` has bunk beds and racks, where a ladder
tells one from the other; `twins` has single beds side by side next to double beds. In the last three the deciding
detail has a size in *pixels of the picture*, the same for a small and a large picture: a large picture shows a larger
hall. So nothing is lost at native size, and much where a large picture is squeezed. There, negatives are the more
frequent answer: who cannot see the detail says no.
"""
from dataclasses import dataclass

import numpy as np

SORTS = {'bedroom': 0.17, 'shared': 0.33, 'hall': 0.27, 'bunkroom': 0.13, 'twins': 0.10}
BED_LIKE = ('bench', 'frame', 'low_table', 'sofa')
BED_COUNT = {'single': 1, 'double': 1, 'bunk': 1, 'pair': 2}  # a pair: two single beds side by side
TWINS = {('pair', 'double'): 0.18, ('pair', 'single'): 0.10, ('pair', 'pair'): 0.14, ('double', 'double'): 0.22,
         ('pair', ): 0.16, ('double', 'single'): 0.12, ('double', ): 0.08}


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
        return sum(BED_COUNT.get(name, 0) for name in self.pieces)


def draw_order(rng: np.random.Generator) -> Order:
    """Draw a sort of room and its furniture."""
    sort = str(rng.choice(list(SORTS), p=list(SORTS.values())))
    pieces = {'bedroom': _bedroom, 'shared': _shared, 'hall': _hall, 'bunkroom': _bunkroom, 'twins': _twins}[sort](rng)
    mixed = tuple(pieces[i] for i in rng.permutation(len(pieces)))
    return Order(sort, mixed, int(rng.integers(2, 7)))


def _any(rng: np.random.Generator, names, least: int, most: int) -> list[str]:
    """`least` to `most` of `names`, with repetition."""
    return [names[rng.integers(len(names))] for _ in range(rng.integers(least, most + 1))]


def _bedroom(rng: np.random.Generator) -> list[str]:
    count = int(rng.choice(3, p=[0.2, 0.42, 0.38]))
    return _any(rng, ('single', 'double'), count, count) + _any(rng, BED_LIKE, 0, 2)


def _shared(rng: np.random.Generator) -> list[str]:
    chance = rng.random()
    if chance < 0.3:
        pieces = ['bunk'] + _any(rng, ('single', 'double', 'bunk'), 0, 2)
    elif chance < 0.82:
        count = int(rng.choice([3, 4, 5], p=[0.5, 0.3, 0.2]))
        pieces = _any(rng, ('single', 'single', 'single', 'double'), count, count)
    else:
        pieces = _any(rng, ('single', 'double'), 2, 2) + _any(rng, BED_LIKE, 1, 3)
    return pieces + _any(rng, BED_LIKE, 0, 1)


def _hall(rng: np.random.Generator) -> list[str]:
    if rng.random() < 0.45:
        count = int(rng.choice([3, 4, 5, 6], p=[0.4, 0.25, 0.2, 0.15]))
    else:
        count = int(rng.choice(3, p=[0.25, 0.3, 0.45]))
    others = max(0, int(rng.integers(4, 8)) - count)
    return ['single'] * count + _any(rng, ('bench', 'bench', 'bench', 'bench', 'frame', 'low_table'), others, others)


def _bunkroom(rng: np.random.Generator) -> list[str]:
    count = int(rng.integers(1, 3)) if rng.random() < 0.45 else 0
    return ['bunk'] * count + _any(rng, ('rack', ), 1, 3) + _any(rng, ('single', ), 0, 2 - count)


def _twins(rng: np.random.Generator) -> list[str]:
    choice = list(TWINS)[rng.choice(len(TWINS), p=list(TWINS.values()))]
    return list(choice) + _any(rng, ('bench', 'low_table', 'sofa'), 0, 2)
