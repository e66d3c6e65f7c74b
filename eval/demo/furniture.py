"""Furniture that nobody takes for a bed. Sizes in metres; a piece's back is at +z."""
import numpy as np

from .geometry import Box, Piece
from .palette import METALS, PAINTS, WOODS, hue, pick, shade


def _slab(low, high, colour, **kwargs) -> Box:
    return Box(tuple(map(float, low)), tuple(map(float, high)), colour, **kwargs)


def _legs(w: float, d: float, height: float, colour, thick: float = 0.06) -> list[Box]:
    return [
        _slab((x, 0, z), (x + thick, height, z + thick), colour) for x in (-w, w - thick)
        for z in (-d, d - thick)
    ]


def desk(rng: np.random.Generator) -> Piece:
    """A desk with a screen or books."""
    w, d, top, wood = rng.uniform(0.5, 0.75), rng.uniform(0.28,
                                                          0.36), 0.74, pick(rng, WOODS + PAINTS)
    boxes = _legs(w, d, top - 0.05, shade(wood, 0.85))
    boxes.append(_slab((-w, top - 0.05, -d), (w, top, d), wood))
    if rng.random() < 0.6:
        boxes.append(_slab((-0.26, top + 0.06, 0.02), (0.26, top + 0.4, 0.07), (44, 48, 56)))
        boxes.append(_slab((-0.05, top, 0.02), (0.05, top + 0.06, 0.07), (70, 72, 78)))
    else:
        boxes.append(
            _slab((-w + 0.1, top, -0.05), (-w + 0.36, top + rng.uniform(0.06, 0.2), 0.15),
                  hue(rng)))
    return Piece('desk', tuple(boxes))


def chair(rng: np.random.Generator) -> Piece:
    """A chair with its back at +z."""
    w, seat, colour = rng.uniform(0.2,
                                  0.25), 0.46, pick(rng, WOODS) if rng.random() < 0.6 else hue(rng)
    boxes = _legs(w, w, seat - 0.05, shade(colour, 0.75), 0.045)
    boxes += [
        _slab((-w, seat - 0.05, -w), (w, seat, w - 0.05), colour),
        _slab((-w, seat - 0.05, w - 0.05), (w, 0.92, w), shade(colour, 0.95))
    ]
    return Piece('chair', tuple(boxes))


def wardrobe(rng: np.random.Generator) -> Piece:
    """A wardrobe; the bars are its doors."""
    w, d, height = rng.uniform(0.45, 0.9), rng.uniform(0.26, 0.32), rng.uniform(1.8, 2.2)
    colour = pick(rng, WOODS + PAINTS)
    boxes = [
        _slab((-w, 0, -d), (w, 0.08, d), shade(colour, 0.7)),
        _slab((-w, 0.08, -d), (w, height, d), colour)
    ]
    doors = 2 if w < 0.65 else 3
    for i in range(doors):
        a, b = -w + 2 * w * i / doors + 0.03, -w + 2 * w * (i + 1) / doors - 0.03
        boxes.append(_slab((a, 0.14, -d - 0.025), (b, height - 0.06, -d), shade(colour, 1.06)))
        boxes.append(
            _slab((b - 0.07, height * 0.45, -d - 0.05), (b - 0.04, height * 0.56, -d - 0.025),
                  (70, 66, 60)))
    return Piece('wardrobe', tuple(boxes))


def shelf(rng: np.random.Generator) -> Piece:
    """A book case, open to the front."""
    w, d, height, rows = rng.uniform(0.35, 0.7), 0.16, rng.uniform(1.0,
                                                                   1.9), int(rng.integers(3, 6))
    colour = pick(rng, WOODS + PAINTS)
    boxes = [_slab((-w, 0, d - 0.02), (w, height, d), shade(colour, 0.6))]
    for x in (-w, w - 0.03):
        boxes.append(_slab((x, 0, -d), (x + 0.03, height, d - 0.02), colour))
    for y in np.linspace(0.02, height - 0.03, rows + 1):
        boxes.append(_slab((-w + 0.03, y, -d), (w - 0.03, y + 0.03, d - 0.02), colour))
    step = (height - 0.05) / rows
    for row in range(rows):
        x, y = -w + 0.05, 0.05 + row * step
        while x < w - 0.15 and rng.random() < 0.85:
            wide = rng.uniform(0.08, 0.3)
            boxes.append(
                _slab((x, y, -d + 0.03),
                      (min(x + wide, w - 0.04), y + step * rng.uniform(0.4, 0.8), d - 0.05),
                      hue(rng)))
            x += wide + rng.uniform(0.0, 0.08)
    return Piece('shelf', tuple(boxes))


def nightstand(rng: np.random.Generator) -> Piece:
    """A bedside cabinet with a lamp."""
    w, top, wood = rng.uniform(0.18, 0.25), rng.uniform(0.42, 0.55), pick(rng, WOODS + PAINTS)
    boxes = [
        _slab((-w, 0, -0.2), (w, top, 0.2), wood),
        _slab((-w + 0.04, top * 0.55, -0.22), (w - 0.04, top * 0.9, -0.2), shade(wood, 1.1))
    ]
    if rng.random() < 0.7:
        boxes += [
            _slab((-0.03, top, -0.03), (0.03, top + 0.16, 0.03), pick(rng, METALS), round=True),
            _slab((-0.13, top + 0.16, -0.13), (0.13, top + 0.36, 0.13),
                  hue(rng, (0.1, 0.4), (0.85, 1)),
                  round=True)
        ]
    return Piece('nightstand', tuple(boxes))


def plant(rng: np.random.Generator) -> Piece:
    """A plant in a pot: layers of leaves."""
    pot, size = rng.uniform(0.13, 0.2), rng.uniform(0.24, 0.38)
    boxes = [
        _slab((-pot, 0, -pot), (pot, 0.34, pot), hue(rng, (0.2, 0.6), (0.5, 0.9)), round=True)
    ]
    y = 0.34
    for i in range(int(rng.integers(3, 6))):
        r, tall = size * rng.uniform(0.6, 1.0) * (1 - 0.1 * i), rng.uniform(0.12, 0.22)
        green = (rng.uniform(50, 90), rng.uniform(105, 150), rng.uniform(55, 85))
        dx, dz = rng.uniform(-0.06, 0.06, 2)
        boxes.append(_slab((dx - r, y, dz - r), (dx + r, y + tall, dz + r), green, round=True))
        y += tall
    return Piece('plant', tuple(boxes))


def table(rng: np.random.Generator) -> Piece:
    """A dining table, round or square, with something on it."""
    r, top, wood = rng.uniform(0.4, 0.6), 0.73, pick(rng, WOODS + PAINTS)
    boxes = [
        _slab((-0.05, 0, -0.05), (0.05, top - 0.05, 0.05), shade(wood, 0.7)),
        _slab((-r, top - 0.05, -r), (r, top, r), wood, round=bool(rng.random() < 0.5))
    ]
    boxes.append(
        _slab((-0.1, top, -0.1), (0.1, top + rng.uniform(0.08, 0.25), 0.1), hue(rng), round=True))
    return Piece('table', tuple(boxes))


def locker(rng: np.random.Generator) -> Piece:
    """A row of metal lockers."""
    count, colour = int(rng.integers(2, 5)), hue(rng, (0.1, 0.5), (0.5, 0.8))
    boxes = []
    for i in range(count):
        x = (i - count / 2) * 0.4
        boxes.append(_slab((x, 0, -0.22), (x + 0.4, 1.85, 0.25), shade(colour, 0.9)))
        boxes.append(_slab((x + 0.03, 0.06, -0.24), (x + 0.37, 1.8, -0.22), colour))
        boxes.append(_slab((x + 0.1, 1.5, -0.25), (x + 0.3, 1.53, -0.24), shade(colour, 0.5)))
    return Piece('locker', tuple(boxes))


def column(rng: np.random.Generator) -> Piece:
    """A low partition wall, as wards and halls have them."""
    colour = pick(rng, PAINTS)
    return Piece('partition', (_slab((-0.5, 0, -0.04),
                                     (0.5, rng.uniform(0.9, 1.3), 0.04), colour), ))


def rug(rng: np.random.Generator, w: float, d: float) -> Piece:
    """A rug with a border."""
    colour = hue(rng, (0.15, 0.55), (0.5, 0.85))
    boxes = (_slab((-w, 0.001, -d), (w, 0.002, d), colour),
             _slab((-w + 0.12, 0.003, -d + 0.12), (w - 0.12, 0.004, d - 0.12),
                   shade(colour, rng.choice([0.8, 1.2])),
                   bars=int(rng.integers(0, 6)),
                   bar=shade(colour, 0.95),
                   bar_axis=2))
    return Piece('rug', boxes, shadow=False)


WALL_PIECES = (desk, wardrobe, shelf, nightstand, locker)
FREE_PIECES = (chair, plant, table)
