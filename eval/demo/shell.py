"""The empty room: floor pattern, skirting, windows, doors, pictures. Sizes in metres."""
import numpy as np

from .palette import FLOORS, PAINTS, WOODS, hue, mix, pick, shade, wall
from .scene import Decal, Finish, Room


def _rect(side: str,
          room_bounds,
          a0: float,
          a1: float,
          y0: float,
          y1: float,
          colour,
          off: float = 0.0) -> Decal:
    """A rectangle on the `back`, `left` or `right` wall; a runs along the wall (x or z)."""
    left, right, back = room_bounds
    if side == 'back':
        z = back - off
        corners = [(a0, y0, z), (a1, y0, z), (a1, y1, z), (a0, y1, z)]
    else:
        x = left + off if side == 'left' else right - off
        corners = [(x, y0, a0), (x, y0, a1), (x, y1, a1), (x, y1, a0)]
    return Decal(np.array(corners, float), colour)


def _floor_rect(x0, x1, z0, z1, colour) -> Decal:
    return Decal(np.array([(x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1)], float), colour)


def _floor_pattern(rng: np.random.Generator, bounds, front: float, colour) -> list[Decal]:
    """Planks along z, or tiles."""
    left, right, back = bounds
    step = max(rng.uniform(0.25, 0.6), (right - left) / 36)
    dark, thin = shade(colour, rng.uniform(0.88, 0.95)), step * 0.045
    decals = []
    for i, x in enumerate(np.arange(left, right, step)):
        if rng.random() < 0.35:
            decals.append(
                _floor_rect(x, min(x + step, right), front, back,
                            shade(colour, rng.uniform(0.96, 1.03))))
        decals.append(_floor_rect(x, x + thin, front, back, dark))
    if rng.random() < 0.5:
        decals += [
            _floor_rect(left, right, z, z + thin, dark)
            for z in np.arange(front, back, step * 1.6)
        ]
    return decals


def _window(rng: np.random.Generator, side: str, bounds, start: float, wide: float,
            height: float) -> list[Decal]:
    """A window with its frame, glazing bars and, sometimes, curtains."""
    y0, y1 = height * rng.uniform(0.3, 0.4), height * rng.uniform(0.78, 0.9)
    sky = mix((200, 224, 245), (250, 236, 210), rng.random())
    frame, bar = pick(rng, PAINTS[:2]), 0.025 * height
    decals = [
        _rect(side, bounds, start - bar, start + wide + bar, y0 - bar, y1 + bar, frame),
        _rect(side, bounds, start, start + wide, y0, y1, sky),
        _rect(side, bounds, start, start + wide, y0, y0 + (y1 - y0) * rng.uniform(0.15, 0.4),
              mix((120, 160, 110), sky, 0.4))
    ]
    for part in np.linspace(0, 1, int(rng.integers(2, 4)) + 1)[1:-1]:
        a = start + wide * part
        decals.append(_rect(side, bounds, a - bar / 3, a + bar / 3, y0, y1, frame))
    middle = (y0 + y1) / 2
    decals.append(_rect(side, bounds, start, start + wide, middle, middle + bar * 0.6, frame))
    if rng.random() < 0.45:
        cloth = hue(rng, (0.1, 0.5), (0.6, 0.9))
        for a in (start - 0.12 * wide, start + 0.88 * wide):
            for i in range(4):
                b = a + 0.06 * wide * i
                decals.append(
                    _rect(side, bounds, b, b + 0.06 * wide, y0 - 0.1 * height, y1 + 0.04 * height,
                          shade(cloth, 1.0 if i % 2 else 0.88)))
    return decals


def _picture(rng: np.random.Generator, side: str, bounds, start: float,
             height: float) -> list[Decal]:
    w, h, y = height * rng.uniform(0.16, 0.36), height * rng.uniform(
        0.14, 0.28), height * rng.uniform(0.52, 0.62)
    colour, rim = hue(rng), 0.012 * height
    return [
        _rect(side, bounds, start, start + w, y, y + h, pick(rng, WOODS)),
        _rect(side, bounds, start + rim, start + w - rim, y + rim, y + h - rim, (240, 238, 230)),
        _rect(side, bounds, start + w * 0.2, start + w * 0.8, y + h * 0.2, y + h * 0.55, colour),
        _rect(side, bounds, start + w * 0.2, start + w * 0.8, y + h * 0.55, y + h * 0.8,
              shade(colour, 1.25))
    ]


def _door(rng: np.random.Generator, side: str, bounds, start: float, height: float) -> list[Decal]:
    wide, tall, colour = 0.34 * height, 0.76 * height, pick(rng, WOODS + PAINTS)
    return [
        _rect(side, bounds, start - 0.03 * height, start + wide + 0.03 * height, 0,
              tall + 0.03 * height, shade(colour, 0.8)),
        _rect(side, bounds, start, start + wide, 0, tall, colour),
        _rect(side, bounds, start + 0.2 * wide, start + 0.8 * wide, 0.55 * tall, 0.9 * tall,
              shade(colour, 1.1)),
        _rect(side, bounds, start + 0.2 * wide, start + 0.8 * wide, 0.1 * tall, 0.45 * tall,
              shade(colour, 1.1)),
        _rect(side, bounds, start + 0.86 * wide, start + 0.93 * wide, 0.46 * tall, 0.5 * tall,
              (60, 58, 52))
    ]


def finish(rng: np.random.Generator, room: Room) -> Finish:
    """Decorate `room`; what hangs on its walls is scaled with its height."""
    bounds, height = (room.left, room.right, room.back), room.height
    paint, floor = wall(rng), pick(rng, FLOORS)
    sides = {
        'back': (room.left, room.right),
        'left': (room.front, room.back),
        'right': (room.front, room.back)
    }
    decals = _floor_pattern(rng, bounds, room.front, floor)
    if rng.random() < 0.3:  # panelling
        tall, panel = height * rng.uniform(0.25, 0.4), mix(paint, hue(rng), 0.35)
        for side, (a0, a1) in sides.items():
            decals.append(
                _rect(side, bounds, a0, a1, 0, tall, shade(panel, 1.0 if side == 'back' else 0.9)))
    skirting = shade(paint, rng.choice([0.75, 1.1]))
    for side, (a0, a1) in sides.items():
        decals.append(_rect(side, bounds, a0, a1, 0, 0.04 * height, skirting))
        decals += _hangings(rng, side, bounds,
                            max(a0, 0.1 * room.back) if side != 'back' else a0, a1, height)
    return Finish(paint, floor, mix(paint, (250, 250, 248), 0.7), tuple(decals))


def _hangings(rng: np.random.Generator, side: str, bounds, a0: float, a1: float,
              height: float) -> list[Decal]:
    """Windows, pictures and a door along one wall, side by side."""
    decals, at = [], a0 + rng.uniform(0.05, 0.5) * height
    while at < a1 - 0.7 * height:
        kind = rng.random()
        if kind < 0.4:
            wide = min(height * rng.uniform(0.45, 0.9), a1 - at - 0.15 * height)
            decals += _window(rng, side, bounds, at, wide, height)
            at += wide
        elif kind < 0.65:
            decals += _picture(rng, side, bounds, at, height)
            at += 0.36 * height
        elif kind < 0.75:
            decals += _door(rng, side, bounds, at, height)
            at += 0.4 * height
        at += rng.uniform(0.15, 0.7) * height
    return decals
