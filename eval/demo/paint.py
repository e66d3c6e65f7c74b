"""Paints a scene: flat shaded faces, fine outlines, soft shadows on the floor. Anti-aliased, RGB
uint8."""
import cv2
import numpy as np

from .geometry import Box, Piece, clip, paint_order
from .palette import shade
from .scene import Finish, Scene

SUBPIXEL = 4  # bits of sub-pixel position that OpenCV's polygon filling takes
SHADOW_SCALE = 4
_FACES = {  # axis, side: the corners of the face in order, as indices into Box.corners()
    (0, 0): (0, 1, 3, 2), (0, 1): (4, 5, 7, 6), (1, 0): (0, 1, 5, 4),
    (1, 1): (2, 3, 7, 6), (2, 0): (0, 2, 6, 4), (2, 1): (1, 3, 7, 5),
}


class Painter:
    """Draws on one image; `line` asks for outlines."""

    def __init__(self, scene: Scene, finish: Finish, line: bool = True):
        self.scene, self.finish, self.camera, self.line = scene, finish, scene.camera, line
        self.image = np.zeros((scene.camera.height, scene.camera.width, 3), np.uint8)
        side = 0.06 * scene.daylight
        self.light = {
            (0, 0): 0.78 + side,
            (0, 1): 0.78 - side,
            (1, 1): 1.0,
            (1, 0): 0.5,
            (2, 0): 0.88,
            (2, 1): 0.7
        }

    def polygon(self, corners: np.ndarray, colour, outline: bool = False) -> None:
        """Fill the polygon `corners` `[n, 3]` (room coordinates)."""
        points = self.camera.project(corners)
        if points is not None:
            self._fill(points, colour, outline)

    def _fill(self, points: np.ndarray, colour, outline: bool) -> None:
        points = clip(points, self.camera.width, self.camera.height)
        if len(points) < 3:
            return
        fixed = np.rint(points * (1 << SUBPIXEL)).astype(np.int32)
        cv2.fillPoly(self.image, [fixed], _rgb(colour), cv2.LINE_AA, SUBPIXEL)
        if outline and self.line:
            cv2.polylines(self.image, [fixed], True, _rgb(shade(colour, 0.72)), 1, cv2.LINE_AA,
                          SUBPIXEL)

    def room(self) -> None:
        """Walls, ceiling, floor and what is on them."""
        room, look = self.scene.room, self.finish
        x0, x1, z0, z1, h = room.left, room.right, room.front, room.back, room.height
        faces = [(((x0, 0, z0), (x1, 0, z0), (x1, 0, z1), (x0, 0, z1)), look.floor),
                 (((x0, h, z0), (x1, h, z0), (x1, h, z1), (x0, h, z1)), shade(look.ceiling, 0.95)),
                 (((x0, 0, z0), (x0, h, z0), (x0, h, z1), (x0, 0, z1)),
                  shade(look.wall, self.light[0, 1] + 0.12)),
                 (((x1, 0, z0), (x1, h, z0), (x1, h, z1), (x1, 0, z1)),
                  shade(look.wall, self.light[0, 0] + 0.12)),
                 (((x0, 0, z1), (x1, 0, z1), (x1, h, z1), (x0, h, z1)), look.wall)]
        for corners, colour in faces:
            self.polygon(np.array(corners, float), colour)
        for decal in look.decals:
            self.polygon(decal.corners, decal.colour)

    def shadows(self) -> None:
        """Darken the floor around and under the furniture."""
        height, width = self.image.shape[:2]
        dark = np.full((height // SHADOW_SCALE + 1, width // SHADOW_SCALE + 1), 255, np.uint8)
        for piece in self.scene.pieces:
            if not piece.shadow:
                continue
            (x0, _, z0), (x1, y1, z1) = piece.low, piece.high
            reach = min(0.25 * y1, 0.35)
            lean = self.scene.daylight * reach
            base = np.array([(x0 - 0.05 - max(lean, 0), 0, z0 - reach),
                             (x1 + 0.05 - min(lean, 0), 0, z0 - reach),
                             (x1 + 0.05 - min(lean, 0), 0, z1), (x0 - 0.05 - max(lean, 0), 0, z1)])
            points = self.camera.project(base)
            if points is not None:
                points = clip(points, width, height)
                if len(points):
                    cv2.fillPoly(dark, [np.rint(points / SHADOW_SCALE).astype(np.int32)], 150)
        metre = self.camera.scale(self.scene.pieces[0].head) if self.scene.pieces else 50
        dark = cv2.GaussianBlur(dark, (0, 0), max(0.8, 0.09 * metre / SHADOW_SCALE))
        dark = cv2.resize(dark,
                          None,
                          fx=SHADOW_SCALE,
                          fy=SHADOW_SCALE,
                          interpolation=cv2.INTER_LINEAR)
        dark = cv2.cvtColor(dark[:height, :width], cv2.COLOR_GRAY2RGB)
        cv2.multiply(self.image, dark, dst=self.image, scale=1 / 255)

    def piece(self, piece: Piece) -> None:
        """Draw the parts that face the camera, the farthest first."""
        order = paint_order(np.array([b.low for b in piece.boxes]),
                            np.array([b.high for b in piece.boxes]),
                            np.array(self.camera.position))
        for i in order:
            box = piece.boxes[i]
            (self._prism if box.round else self._box)(box)

    def _box(self, box: Box) -> None:
        corners, eye = box.corners(), self.camera.position
        for (axis, side), index in _FACES.items():
            facing = eye[axis] < box.low[axis] if side == 0 else eye[axis] > box.high[axis]
            if facing:
                colour = shade(box.colour, self.light[axis, side])
                self.polygon(corners[list(index)], colour, outline=True)
                if box.bars and axis != box.bar_axis:
                    self._bars(box, axis, side)

    def _bars(self, box: Box, axis: int, side: int) -> None:
        """Stripes across the box on one face."""
        colour = shade(box.bar, self.light[axis, side])
        low, high = np.array(box.low), np.array(box.high)
        step = (high - low)[box.bar_axis] / box.bars
        for i in range(box.bars):
            a, b = low.copy(), high.copy()
            a[box.bar_axis] = low[box.bar_axis] + (i + 0.3) * step
            b[box.bar_axis] = low[box.bar_axis] + (i + 0.7) * step
            corners = Box(tuple(a), tuple(b), colour).corners()
            self.polygon(corners[list(_FACES[axis, side])], colour)

    def _prism(self, box: Box) -> None:
        """A body with a rounded top: its outline in shadow colour, its top bright."""
        (x0, y0, z0), (x1, y1, z1) = box.low, box.high
        angle = np.linspace(0, 2 * np.pi, 20, endpoint=False) + np.pi / 20
        c, s = np.cos(angle), np.sin(angle)
        ring = np.stack([(x0 + x1) / 2 + (x1 - x0) / 2 * np.sign(c) * np.abs(c)**0.55,
                         np.zeros(20),
                         (z0 + z1) / 2 + (z1 - z0) / 2 * np.sign(s) * np.abs(s)**0.55],
                        axis=1)
        bottom, top = ring + (0, y0, 0), ring + (0, y1, 0)
        points = self.camera.project(np.concatenate([bottom, top]))
        if points is None or len(points) != 40:
            return
        body = cv2.convexHull(points.astype(np.float32))[:, 0]
        self._fill(body, shade(box.colour, 0.74), outline=True)
        self._fill(points[20:], box.colour, outline=False)


def _rgb(colour) -> tuple:
    return tuple(float(min(255, max(0, round(c)))) for c in colour)


def paint(scene: Scene, finish: Finish, line: bool = True) -> np.ndarray:
    """The picture of `scene`: uint8 RGB `[height, width, 3]`, clean, as drawn."""
    painter = Painter(scene, finish, line)
    painter.room()
    painter.shadows()
    for piece in scene.pieces:
        painter.piece(piece)
    return painter.image
