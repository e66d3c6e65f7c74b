"""What a picture shows: a room, the furniture in it, and the camera."""
from dataclasses import dataclass, replace

import cv2
import numpy as np

from .beds import BEDS
from .geometry import Box, Camera, Colour, Piece, paint_order

MIN_PILLOW = (8.0, 4.5)  # pixels: smaller evidence than this would not survive the camera


@dataclass(frozen=True)
class Decal:
    """A flat polygon on a wall or on the floor: corners `[n, 3]`."""
    corners: np.ndarray
    colour: Colour


@dataclass(frozen=True)
class Room:
    """A box: x from `left` to `right`, z from `front` (behind the camera) to `back`, y from 0 to
    `height`."""
    left: float
    right: float
    front: float
    back: float
    height: float


@dataclass(frozen=True)
class Finish:
    """How a room looks: colours, and what is painted on its surfaces, in order."""
    wall: Colour
    floor: Colour
    ceiling: Colour
    decals: tuple[Decal, ...]


@dataclass(frozen=True)
class Scene:
    """Attributes:
        pieces: in painting order, the farthest first.
        sort: the sort of room, see layout.py.
        daylight: where light comes in, as x from -1 (left) to 1 (right), for shading.
    """
    room: Room
    camera: Camera
    pieces: tuple[Piece, ...]
    daylight: float
    sort: str

    def beds(self) -> int:
        """How many beds there are; a bunk bed counts once."""
        return sum(piece.kind in BEDS for piece in self.pieces)

    def bunks(self) -> int:
        """How many bunk beds there are."""
        return sum(piece.kind == 'bunk' for piece in self.pieces)


def in_order(pieces, camera: Camera) -> tuple[Piece, ...]:
    """`pieces` as they have to be painted."""
    if not pieces:
        return ()
    order = paint_order(np.array([piece.low for piece in pieces]),
                        np.array([piece.high for piece in pieces]), np.array(camera.position))
    return tuple(pieces[i] for i in order)


def hull(camera: Camera, box, scale: float = 1.0) -> np.ndarray:
    """The outline of `box` in pixels times `scale`, int32 `[n, 1, 2]`; empty where it is behind
    the camera."""
    seen = camera.view(box.corners())
    if seen[:, 2].min() < 0.15:
        return np.zeros((0, 1, 2), np.int32)
    u = camera.width / 2 + camera.focal * seen[:, 0] / seen[:, 2]
    v = camera.height / 2 - camera.focal * seen[:, 1] / seen[:, 2]
    return cv2.convexHull(np.rint(np.stack([u, v], axis=1) * scale).astype(np.int32))


#: What a class map tells apart, besides 0, the room.
CLASSES = {
    'other': 1,
    'bed': 2,
    'pillow': 3,
    'bunk': 4,
    'ladder': 5,
    'bench': 6,
    'rack': 7,
    'sofa': 8
}


def class_map(scene: Scene, step: int) -> np.ndarray:
    """What is where, for dense supervision: uint8 `[height / step, width / step]` of `CLASSES`."""
    shape = scene.camera.height // step, scene.camera.width // step
    classes = np.zeros(shape, np.uint8)
    for piece in scene.pieces:
        for box in _own_order(piece, scene.camera):
            outline = hull(scene.camera, box, 1 / step)
            if len(outline):
                cv2.fillConvexPoly(classes, outline, _class_of(piece, box))
    return classes


def _class_of(piece: Piece, box: Box) -> int:
    if piece.kind == 'bunk':
        return CLASSES['ladder' if box.key else 'bunk']
    if piece.kind in BEDS:
        return CLASSES['pillow' if box.key else 'bed']
    return CLASSES.get('bench' if piece.kind in ('frame', 'table') else piece.kind,
                       CLASSES['other'])


def hidden_beds(scene: Scene) -> list[Piece]:
    """The beds that a person could not make out for certain: cut off, covered by other furniture,
    or too small."""
    scale = min(1.0, 300 / max(scene.camera.width, scene.camera.height))
    shape = round(scene.camera.height * scale), round(scene.camera.width * scale)
    ids = np.zeros(shape, np.int32)
    drawn: dict[int, int] = {}
    for i, piece in enumerate(scene.pieces):
        for box in _own_order(piece, scene.camera):
            mark = 2 * i + (2 if box.key else 1)
            outline = hull(scene.camera, box, scale)
            if len(outline):
                cv2.fillConvexPoly(ids, outline, mark)
            if box.key:
                drawn[mark] = drawn.get(mark, 0) + _area(outline)
        drawn[2 * i + 1] = np.count_nonzero((ids == 2 * i + 1) | (ids == 2 * i + 2))
    bad = []
    for i, piece in enumerate(scene.pieces):
        if piece.kind in BEDS and not _plain(scene, piece, ids, drawn, i, scale):
            bad.append(piece)
    return bad


def _area(outline: np.ndarray) -> int:
    return max(1, int(cv2.contourArea(outline))) if len(outline) else 1


def _own_order(piece: Piece, camera: Camera):
    order = paint_order(np.array([b.low for b in piece.boxes]),
                        np.array([b.high for b in piece.boxes]), np.array(camera.position))
    return [piece.boxes[i] for i in order]


def _plain(scene: Scene, piece: Piece, ids: np.ndarray, drawn: dict, i: int, scale: float) -> bool:
    """Whether enough of the bed can be seen: its pillow or ladder, and more than half of its
    body."""
    outlines = [hull(scene.camera, box) for box in piece.boxes if box.key]
    if any(not len(outline) for outline in outlines):
        return False
    body = np.count_nonzero((ids == 2 * i + 1) | (ids == 2 * i + 2))
    keys = np.count_nonzero(ids == 2 * i + 2)
    need = 0.35 if piece.kind == 'bunk' else 0.6
    if body < 0.6 * drawn[2 * i + 1] or keys < need * drawn[2 * i + 2]:
        return False
    whole = cv2.convexHull(np.concatenate([hull(scene.camera, box) for box in piece.boxes]))
    x, y, w, h = cv2.boundingRect(whole)
    inside = (max(0,
                  min(x + w, scene.camera.width) - max(x, 0)) *
              max(0,
                  min(y + h, scene.camera.height) - max(y, 0)))
    if inside < 0.75 * w * h:
        return False
    if piece.kind == 'bunk':
        return True
    sizes = [cv2.boundingRect(outline)[2:] for outline in outlines]
    edges = [cv2.boundingRect(outline) for outline in outlines]
    framed = all(x >= 0 and y >= 0 and x + w <= scene.camera.width and y + h <= scene.camera.height
                 for x, y, w, h in edges)
    return framed and all(w >= MIN_PILLOW[0] and h >= MIN_PILLOW[1] for w, h in sizes)


def without(scene: Scene, pieces: list[Piece]) -> Scene:
    """The scene with `pieces` taken away."""
    gone = {id(piece) for piece in pieces}
    return replace(scene, pieces=tuple(piece for piece in scene.pieces if id(piece) not in gone))
