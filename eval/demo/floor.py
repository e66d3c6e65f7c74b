"""Finding places for furniture on the floor of a room."""
from typing import Callable

import numpy as np

from . import beds, furniture
from .geometry import Camera, Piece
from .scene import Room

WALL_PIECES = {maker.__name__: maker for maker in furniture.WALL_PIECES}
LONG_PIECES = {
    'bench': beds.bench,
    'frame': beds.bare_frame,
    'low_table': beds.low_table,
    'rack': beds.rack
}
_LADDER = {
    0: 'foot',
    1: '-x',
    3: '+x'
}  # the side that shows, for a bunk bed turned by so many quarters


def build(rng: np.random.Generator, name: str, style: dict, quarter: int = 0) -> Piece:
    """The piece called `name`, turned by `quarter` quarter turns; not yet placed."""
    if name in WALL_PIECES:
        piece = WALL_PIECES[name](rng)
    elif name == 'bunk':
        piece = beds.bunk(rng, _LADDER[quarter], **style)
    elif name in LONG_PIECES:
        piece = LONG_PIECES[name](rng, **style)
    else:
        piece = beds.sofa(rng, **style) if name == 'sofa' else beds.bed(rng, name, **style)
    return piece.placed(quarter, 0, 0)


class Floor:
    """The pieces placed so far in `room`, as `camera` sees them."""

    def __init__(self, room: Room, camera: Camera):
        self.room, self.camera = room, camera
        self.pieces: list[Piece] = []

    def free(self, low, high, gap: float) -> bool:
        """Whether nothing stands within `gap` metres of the footprint from `low` to `high`."""
        return not any(low[0] < other.high[0] + gap and high[0] > other.low[0] -
                       gap and low[2] < other.high[2] + gap and high[2] > other.low[2] - gap
                       for other in self.pieces)

    def add(self, piece: Piece, x: float, z: float, gap: float) -> bool:
        """Move `piece` by x, z and keep it there, if it stands free."""
        if not self.free(piece.low + (x, 0, z), piece.high + (x, 0, z), gap):
            return False
        self.pieces.append(piece.placed(0, x, z))
        return True

    def to_wall(self, rng: np.random.Generator, name: str, style: dict, gap: float, tries: int,
                shown: bool) -> bool:
        """Put a new piece to a wall, its head against it or its side along it; `shown`: so that
        the camera sees its head and its middle. False where no place was found."""
        built: dict[int, Piece] = {}
        for _ in range(tries):
            side = ('back', 'back', 'left', 'right')[rng.integers(4)]
            quarter = {'back': 0, 'left': 1, 'right': 3}[side]
            if rng.random() < 0.3 and (name in LONG_PIECES or name in ('single', 'bunk')):
                quarter = (1, 3)[rng.integers(2)] if side == 'back' else 0
            if quarter not in built:
                built[quarter] = build(rng, name, style, quarter)
            piece = built[quarter]
            x, z = self._shift(rng, piece, side)
            if (not shown or self._framed(piece, x, z)) and self.add(piece, x, z, gap):
                return True
        return False

    def _shift(self, rng: np.random.Generator, piece: Piece, side: str) -> tuple[float, float]:
        """How far to move a piece so that it stands somewhere along the wall `side`."""
        room, off = self.room, rng.uniform(0.03, 0.15)
        if side == 'back':
            return _within(rng, room.left - piece.low[0],
                           room.right - piece.high[0]), room.back - off - piece.high[2]
        x = room.left + off - piece.low[0] if side == 'left' else room.right - off - piece.high[0]
        return x, _within(rng, 1.0 - piece.low[2], room.back - 0.1 - piece.high[2])

    def _framed(self, piece: Piece, x: float, z: float) -> bool:
        points = self.camera.view(np.stack([piece.head, (piece.low + piece.high) / 2]) + (x, 0, z))
        if (points[:, 2] < 0.8).any():
            return False
        offset = np.abs(points[:, :2] / points[:, 2:]) * self.camera.focal
        return bool((offset < (0.45 * self.camera.width, 0.45 * self.camera.height)).all())

    def anywhere(self, rng: np.random.Generator, maker: Callable[[np.random.Generator], Piece],
                 tries: int) -> bool:
        """Put a small piece somewhere in the room."""
        piece = maker(rng).placed(int(rng.integers(4)), 0, 0)
        return any(
            self.add(piece, rng.uniform(self.room.left + 0.4, self.room.right - 0.4),
                     rng.uniform(self.room.back * 0.3, self.room.back - 0.5), 0.15)
            for _ in range(tries))

    def extras(self, rng: np.random.Generator, count: int) -> None:
        """Up to `count` ordinary pieces of furniture."""
        names = list(WALL_PIECES)
        for _ in range(count):
            if rng.random() < 0.7:
                self.to_wall(rng, names[rng.integers(len(names))], {}, 0.1, 6, shown=False)
            else:
                self.anywhere(rng, furniture.FREE_PIECES[rng.integers(len(furniture.FREE_PIECES))],
                              6)


def _within(rng: np.random.Generator, least: float, most: float) -> float:
    return rng.uniform(least, most) if least < most else (least + most) / 2
