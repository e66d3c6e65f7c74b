"""Beds, and furniture that is easily taken for one. Sizes in metres."""
from typing import Optional

import numpy as np

from .geometry import Box, Piece
from .palette import LINENS, METALS, WOODS, hue, mix, pick, shade

BEDS = ('single', 'double', 'bunk')
LENGTH = 1.98


def _slab(low, high, colour, **kwargs) -> Box:
    return Box(tuple(map(float, low)), tuple(map(float, high)), colour, **kwargs)


def _bedding(rng: np.random.Generator, width: float, base: float, pillows: int, cover,
             linen) -> list[Box]:
    """Mattress, blanket, turned-down sheet and pillows on a frame whose top is at height
    `base`."""
    top, half, w = base + rng.uniform(0.14, 0.22), LENGTH / 2, width / 2
    split = half - rng.uniform(0.55, 0.72)
    bars = int(rng.integers(3, 7)) if rng.random() < 0.3 else 0
    boxes = [
        _slab((-w - 0.02, base - 0.04, -half), (w + 0.02, top + 0.03, split),
              cover,
              bars=bars,
              bar=mix(cover, pick(rng, LINENS), 0.7),
              bar_axis=2),
        _slab((-w, base, split + 0.13), (w, top, half - 0.02),
              mix(linen, cover, rng.uniform(0.0, 0.55))),
        _slab((-w - 0.01, base, split), (w + 0.01, top + 0.04, split + 0.13), shade(linen, 0.97)),
    ]
    lane = width / pillows
    for i in range(pillows):
        wide = min(lane * rng.uniform(0.6, 0.8), 0.66) / 2
        middle = -w + lane * (i + 0.5)
        deep = rng.uniform(0.34, 0.42)
        boxes.append(
            _slab((middle - wide, top, half - 0.06 - deep),
                  (middle + wide, top + 0.13, half - 0.06),
                  linen,
                  round=True,
                  key=True))
    return boxes


def _frame(rng: np.random.Generator, width: float, base: float, colour) -> list[Box]:
    """Side boards, and a headboard in most cases."""
    half, w = LENGTH / 2, width / 2
    boxes = [_slab((-w - 0.02, 0.07, -half), (w + 0.02, base - 0.05, half - 0.02), colour)]
    if rng.random() < 0.8:
        boxes.append(
            _slab((-w - 0.03, 0, half), (w + 0.03, rng.uniform(0.7, 1.1), half + 0.06),
                  shade(colour, 1.05)))
    if rng.random() < 0.3:
        boxes.append(
            _slab((-w - 0.03, 0, -half - 0.06), (w + 0.03, rng.uniform(0.35, 0.5), -half), colour))
    return boxes


def bed(rng: np.random.Generator, kind: str, wood=None, cover=None) -> Piece:
    """A single bed with one pillow or a double bed with two."""
    width = rng.uniform(0.84, 1.02) if kind == 'single' else rng.uniform(1.45, 1.85)
    base = rng.uniform(0.28, 0.36)
    wood = pick(rng, WOODS + METALS) if wood is None else wood
    cover = hue(rng) if cover is None else cover
    boxes = _frame(rng, width, base, wood)
    boxes += _bedding(rng, width, base, 1 if kind == 'single' else 2, cover, pick(rng, LINENS))
    return Piece(kind, tuple(boxes), (0.0, base + 0.2, LENGTH / 2 - 0.25))


def bunk(rng: np.random.Generator, ladder: str = 'foot', wood=None, cover=None) -> Piece:
    """Two beds above each other, with a guard rail and a ladder at the `foot`, or on the side `-x`
    or `+x`."""
    width, half = rng.uniform(0.86, 1.0), LENGTH / 2
    w, upper, height = width / 2, rng.uniform(1.15, 1.3), rng.uniform(1.6, 1.75)
    wood = pick(rng, WOODS + METALS) if wood is None else wood
    cover = hue(rng) if cover is None else cover
    boxes = _posts(w, half, height, wood)
    for base in (0.3, upper):
        boxes.append(_slab((-w, base - 0.14, -half), (w, base - 0.045, half - 0.02), wood))
        boxes += _bedding(rng, width - 0.06, base, 1, cover, pick(rng, LINENS))
    rail = shade(wood, 1.15)
    side = {'+x': 1, '-x': -1, 'foot': rng.choice([-1, 1])}[ladder]
    x0, x1 = sorted((side * (w + 0.07), side * (w + 0.11)))
    boxes.append(_slab((x0, height - 0.2, -half + 0.5), (x1, height - 0.08, half), rail))
    start = -half + 0.06 if ladder != 'foot' else -0.22
    steps = [(0, height, start + a, start + a + 0.06) for a in (0.0, 0.44)]
    rungs = [(y, y + 0.07, start + 0.06, start + 0.44) for y in np.linspace(0.26, upper + 0.1, 5)]
    for y0, y1, a, b in steps + rungs:
        low, high = (x0, y0, a), (x1, y1, b)
        if ladder == 'foot':
            low, high = (a, y0, -half - 0.12), (b, y1, -half - 0.07)
        boxes.append(_slab(low, high, rail, key=y0 > 0))
    return Piece('bunk', tuple(boxes), (0.0, upper, 0.0))


def _posts(w: float, half: float, height: float, colour) -> list[Box]:
    return [
        _slab((x, 0, z), (x + 0.06, height, z + 0.06), colour) for x in (-w - 0.06, w)
        for z in (-half - 0.06, half)
    ]


def rack(rng: np.random.Generator, wood=None, cover=None) -> Piece:
    """A storage rack as long and as high as a bunk bed: shelves with folded cloth and boxes, no
    ladder."""
    width, half = rng.uniform(0.7, 1.0), LENGTH / 2
    w, height = width / 2, rng.uniform(1.6, 1.75)
    wood = pick(rng, WOODS + METALS) if wood is None else wood
    cover = hue(rng) if cover is None else cover
    boxes = _posts(w, half, height, wood)
    for base in ((0.3, rng.uniform(1.15, 1.3)) if rng.random() < 0.7 else (0.3, 0.85, 1.4)):
        boxes.append(_slab((-w, base - 0.12, -half), (w, base - 0.02, half), wood))
        start = -half + 0.02
        while start < half - 0.3:
            end = min(start + rng.uniform(0.35, 1.5), half - 0.02)
            colour = cover if rng.random() < 0.6 else pick(rng, LINENS + WOODS)
            boxes.append(
                _slab((-w + 0.04, base, start), (w - 0.04, base + rng.uniform(0.12, 0.3), end),
                      colour))
            start = end + rng.uniform(0.03, 0.4)
    return Piece('rack', tuple(boxes), (0.0, 0.8, 0.0))


def bench(rng: np.random.Generator, wood=None, cover=None) -> Piece:
    """A bench or couch of a bed's size without a pillow: bare, with a cloth across, or with a
    cushion in the middle."""
    width, half, base = rng.uniform(0.8, 1.02), LENGTH / 2, rng.uniform(0.28, 0.36)
    w, top = width / 2, base + rng.uniform(0.1, 0.2)
    wood = pick(rng, WOODS + METALS) if wood is None else wood
    cover = hue(rng) if cover is None else cover
    boxes = _frame(rng, width, base, wood) + [
        _slab((-w - 0.02, base - 0.04, -half), (w + 0.02, top, half - 0.02), cover)
    ]
    boxes += _topping(rng, w, top, half)
    return Piece('bench', tuple(boxes), (0.0, top, 0.0))


def _topping(rng: np.random.Generator, w: float, top: float, half: float) -> list[Box]:
    """What lies on a bench. A bright thing of a pillow's area, but neither in its place nor of its
    shape."""
    style, linen = rng.random(), pick(rng, LINENS)
    if style < 0.25:
        return []
    if style < 0.55:  # a cloth over the whole width, at the end
        deep = rng.uniform(0.22, 0.34)
        start = half - 0.04 - deep - rng.uniform(0, 0.12)
        return [_slab((-w - 0.03, top, start), (w + 0.03, top + 0.02, start + deep), linen)]
    wide, deep = rng.uniform(0.26, 0.33), rng.uniform(0.34, 0.42)
    start = -deep / 2 + rng.uniform(-0.25, 0.12)  # a cushion in the middle
    return [_slab((-wide, top, start), (wide, top + 0.13, start + deep), linen, round=True)]


def bare_frame(rng: np.random.Generator, wood=None, cover: Optional[tuple] = None) -> Piece:
    """A bed frame without a mattress: slats."""
    width, base = rng.uniform(0.84, 1.7), rng.uniform(0.26, 0.36)
    half, w = LENGTH / 2, width / 2
    wood = pick(rng, WOODS + METALS) if wood is None else wood
    boxes = _frame(rng, width, base, wood)
    boxes.append(
        _slab((-w, base - 0.05, -half), (w, base, half - 0.02),
              shade(wood, 0.45),
              bars=int(rng.integers(8, 12)),
              bar=shade(wood, 1.25),
              bar_axis=2))
    return Piece('frame', tuple(boxes), (0.0, base, 0.0))


def low_table(rng: np.random.Generator, wood=None, cover=None) -> Piece:
    """A long table of a bed's footprint, with a runner or a tray."""
    width, half = rng.uniform(0.75, 1.0), LENGTH / 2 * rng.uniform(0.85, 1)
    w, top = width / 2, rng.uniform(0.42, 0.62)
    wood = pick(rng, WOODS) if wood is None else wood
    boxes = [
        _slab((x, 0, z), (x + 0.07, top - 0.06, z + 0.07), shade(wood, 0.8))
        for x in (-w, w - 0.07) for z in (-half, half - 0.07)
    ]
    boxes.append(_slab((-w, top - 0.06, -half), (w, top, half), wood))
    runner = hue(rng) if cover is None else cover
    boxes.append(
        _slab((-w * 0.45, top, -half), (w * 0.45, top + 0.01, half * rng.uniform(0.2, 1.0)),
              runner))
    return Piece('table', tuple(boxes), (0.0, top, 0.0))


def sofa(rng: np.random.Generator, wood=None, cover=None) -> Piece:
    """A sofa with two or three seats, sometimes with bright cushions; its back is at +z."""
    seats = int(rng.integers(1, 4))
    width, deep, back = 0.25 + 0.62 * seats, rng.uniform(0.8, 0.95), rng.uniform(0.72, 0.9)
    cover = hue(rng, (0.1, 0.55), (0.4, 0.8)) if cover is None else cover
    w, d, seat = width / 2, deep / 2, rng.uniform(0.38, 0.45)
    boxes = [
        _slab((-w, 0.06, -d), (w, seat - 0.12, d), shade(cover, 0.8)),
        _slab((-w, seat - 0.12, d - 0.2), (w, back, d), cover)
    ]
    for x in (-w, w - 0.16):
        boxes.append(
            _slab((x, seat - 0.12, -d), (x + 0.16, seat + 0.18, d - 0.2), shade(cover, 0.94)))
    lane = (width - 0.32) / seats
    for i in range(seats):
        x = -w + 0.16 + i * lane
        boxes.append(
            _slab((x + 0.01, seat - 0.12, -d), (x + lane - 0.01, seat + 0.03, d - 0.2),
                  shade(cover, 1.12)))
    for side in (-1, 1):
        if rng.random() < 0.4:
            x = side * (w - 0.42)
            boxes.append(
                _slab((x - 0.2, seat + 0.03, d - 0.42), (x + 0.2, seat + 0.35, d - 0.22),
                      pick(rng, LINENS) if rng.random() < 0.5 else hue(rng),
                      round=True))
    return Piece('sofa', tuple(boxes), (0.0, seat, 0.0))
