"""Furnished rooms: where the camera stands and where the furniture goes."""
from typing import Optional

import numpy as np

from . import beds, furniture
from .floor import Floor, build
from .geometry import Camera
from .orders import Order, draw_order
from .scene import Room, Scene, hidden_beds, in_order, without

#: Pixels a metre at the farthest row of a hall; the largest pictures show the largest halls.
SCALE, LARGE_SCALE = (40.0, 58.0), (20.0, 27.5)
LARGE = 1200  # pixels of a picture's longer side
ATTEMPTS = 8
IN_THE_WAY = ('desk', 'wardrobe', 'shelf', 'nightstand', 'locker', 'chair', 'plant', 'table')


def make_scene(rng: np.random.Generator, width: int, height: int) -> Scene:
    """A furnished room for a picture of `width` x `height` pixels. Every bed in it can be made
    out: a layout in which one cannot is drawn again, after `ATTEMPTS` with other furniture."""
    while True:
        order = draw_order(rng)
        for _ in range(ATTEMPTS):
            scene = _clear_layout(rng, order, width, height)
            if scene is not None:
                return scene


def _clear_layout(rng: np.random.Generator, order: Order, width: int,
                  height: int) -> Optional[Scene]:
    """One layout of the order, or None if a bed found no place or cannot be made out."""
    furnish = _near if order.sort in ('bedroom', 'shared') else _far
    scene = furnish(rng, order, width, height)
    if scene.beds() != order.beds():
        return None
    if hidden_beds(scene):  # most often something that stands around is in the way
        scene = without(scene, [piece for piece in scene.pieces if piece.kind in IN_THE_WAY])
    return None if hidden_beds(scene) else scene


def _style(rng: np.random.Generator, alike: float) -> dict:
    """The same wood and cloth for the whole room with probability `alike`, else each piece has its
    own."""
    if rng.random() >= alike:
        return {}
    return {'wood': beds.pick(rng, beds.WOODS + beds.METALS), 'cover': beds.hue(rng)}


def _near(rng: np.random.Generator, order: Order, width: int, height: int) -> Scene:
    """An ordinary room; the camera stands in its front."""
    count = len(order.pieces)
    wide, deep = rng.uniform(3.4, 5.0) + 0.5 * count, rng.uniform(3.6, 5.2) + 0.25 * count
    room = Room(-wide / 2, wide / 2, -3.0, deep, rng.uniform(2.5, 3.0))
    floor = Floor(room, _near_camera(rng, room, width, height))
    style = _style(rng, 0.5)
    for name in order.pieces:
        floor.to_wall(rng, name, style, rng.uniform(0.12, 0.35), 40, shown=True)
    rug = ()
    if rng.random() < 0.4:
        w, d = rng.uniform(0.5, wide / 3.2), rng.uniform(0.5, deep / 4)
        rug = (furniture.rug(rng, w, d).placed(0, rng.uniform(-wide / 6, wide / 6),
                                               deep * rng.uniform(0.35, 0.6)), )
    floor.extras(rng, order.extras)
    return Scene(room, floor.camera, rug + in_order(floor.pieces, floor.camera),
                 rng.uniform(-1, 1), order.sort)


def _near_camera(rng: np.random.Generator, room: Room, width: int, height: int) -> Camera:
    wide = room.right - room.left
    eye = (rng.uniform(-0.3, 0.3) * wide, rng.uniform(1.7, 2.5), -rng.uniform(0.3, 1.6))
    target = (rng.uniform(-0.12, 0.12) * wide, rng.uniform(0.4, 0.9),
              room.back * rng.uniform(0.55, 0.8))
    ratio = rng.uniform(0.52, 0.8) if width > height else rng.uniform(0.8, 1.15)
    focal = ratio * width * (room.back - eye[2]) / wide
    return _aim(eye, target, focal, width, height)


def _aim(eye, target, focal: float, width: int, height: int) -> Camera:
    """A camera at `eye` with `target` in the middle of its picture."""
    dx, dy, dz = (t - e for t, e in zip(target, eye))
    return Camera(eye, float(np.arctan2(dx, dz)), float(np.arctan2(-dy, np.hypot(dx, dz))), focal,
                  width, height)


def _far(rng: np.random.Generator, order: Order, width: int, height: int) -> Scene:
    """A hall or a ward with its furniture in rows; the camera is far away, so that pieces are of
    about one size."""
    scale = rng.uniform(*(LARGE_SCALE if max(width, height) >= LARGE else SCALE))
    focal = width * (rng.uniform(0.9, 1.25) if width > height else rng.uniform(1.2, 1.6))
    back, rise = focal / scale, np.radians(rng.uniform(22, 34))
    pitch_x = rng.uniform(1.7, 2.5) * (1.0 if order.sort == 'hall' else 1.35)
    pitch_z = rng.uniform(2.7, 3.4)
    visible = width / scale * 0.86
    widest = int(np.clip(visible // pitch_x, 1, 6))
    rows, columns = _grid(rng, len(order.pieces) + 1, widest, width < height)
    eye = (rng.uniform(-0.12, 0.12) * visible, back * np.sin(rise), back - 2 - back * np.cos(rise))
    target = (rng.uniform(-0.05, 0.05) * visible, 0.5, back - 1.2 - (rows - 1) * pitch_z / 2)
    half = visible * rng.uniform(0.5, 0.75)
    room = Room(-half, half, eye[2] - 1, back, max(rng.uniform(3.2, 4.5), eye[1] + 0.5))
    floor, style = Floor(room, _aim(eye, target, focal, width, height)), _style(rng, 0.75)
    for cell, name in zip(rng.permutation(rows * columns), order.pieces):
        row, column = divmod(int(cell), columns)
        x = (column - (columns - 1) / 2) * pitch_x + rng.uniform(-0.2, 0.2)
        _put(rng, floor, name, style, x, back - 1.6 - row * pitch_z + rng.uniform(-0.25, 0.25))
    floor.extras(rng, order.extras)
    return Scene(room, floor.camera, in_order(floor.pieces, floor.camera), rng.uniform(-1, 1),
                 order.sort)


def _grid(rng: np.random.Generator, cells: int, widest: int, portrait: bool) -> tuple[int, int]:
    """Rows and columns for at least `cells` pieces (18 at most), no more than `widest` in a
    row."""
    least = int(np.ceil(cells / widest))
    rows = int(np.clip(rng.integers(2, 4) if portrait else rng.integers(1, 4), min(least, 3), 3))
    return rows, int(np.clip(np.ceil(cells / rows) + rng.integers(0, 2), 1, widest))


def _put(rng: np.random.Generator, floor: Floor, name: str, style: dict, x: float,
         z: float) -> None:
    """Put one piece in its place in a row."""
    quarter = (0, 1, 3)[rng.integers(3)] if name in ('bunk', 'rack') else 0
    floor.add(build(rng, name, style, quarter), x, z, 0.02)
