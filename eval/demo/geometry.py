"""A pinhole camera, and solids that can be painted back to front.

Room coordinates: x to the right, y up, z away from the viewer, in metres. Pixels: u to the right,
v down.
"""
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Optional

import numpy as np

NEAR = 0.15  # metres: what is closer to the camera is cut off
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Camera:
    """Attributes:
        position: x, y, z of the eye.
        yaw, pitch: radians; positive yaw looks to the right, positive pitch looks down.
        focal: focal length in pixels.
        width, height: of the image in pixels.
    """
    position: tuple[float, float, float]
    yaw: float
    pitch: float
    focal: float
    width: int
    height: int

    def view(self, points: np.ndarray) -> np.ndarray:
        """Room coordinates `[n, 3]` to camera coordinates (right, up, forward)."""
        cy, sy, cp, sp = np.cos(self.yaw), np.sin(self.yaw), np.cos(self.pitch), np.sin(self.pitch)
        turn = np.array([[cy, 0, -sy], [0, 1, 0], [sy, 0, cy]])
        tilt = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])
        return (np.asarray(points, np.float64) - self.position) @ (tilt @ turn).T

    def project(self, points: np.ndarray) -> Optional[np.ndarray]:
        """Pixels `[m, 2]` of the polygon `points` `[n, 3]`, cut at the near plane; None where
        nothing is left."""
        seen = _clip_near(self.view(points))
        if len(seen) < 3:
            return None
        u = self.width / 2 + self.focal * seen[:, 0] / seen[:, 2]
        v = self.height / 2 - self.focal * seen[:, 1] / seen[:, 2]
        return np.stack([u, v], axis=1)

    def scale(self, point: tuple[float, float, float]) -> float:
        """Pixels per metre at `point`."""
        return self.focal / max(self.view(np.array([point]))[0, 2], NEAR)


def _clip_near(polygon: np.ndarray) -> np.ndarray:
    """Sutherland and Hodgman's clipping, against the near plane only."""
    inside = polygon[:, 2] >= NEAR
    if inside.all():
        return polygon
    kept = []
    for i in range(len(polygon)):
        a, b = polygon[i - 1], polygon[i]
        if inside[i] != inside[i - 1]:
            kept.append(a + (b - a) * ((NEAR - a[2]) / (b[2] - a[2])))
        if inside[i]:
            kept.append(b)
    return np.array(kept).reshape(-1, 3)


def clip(polygon: np.ndarray, width: int, height: int, margin: float = 64.0) -> np.ndarray:
    """The convex `polygon` (pixels, `[n, 2]`) cut at the picture's frame, `margin` pixels outside
    it.

    OpenCV's filling works in fixed point: corners far outside overflow there, so they are cut off
    beforehand.
    """
    if (np.abs(polygon) < 4096).all():
        return polygon
    for axis, sign, bound in ((0, 1, -margin), (0, -1, -width - margin), (1, 1, -margin),
                              (1, -1, -height - margin)):
        kept, inside = [], sign * polygon[:, axis] >= bound
        for i in range(len(polygon)):
            a, b = polygon[i - 1], polygon[i]
            if inside[i] != inside[i - 1]:
                kept.append(a + (b - a) * ((bound * sign - a[axis]) / (b[axis] - a[axis])))
            if inside[i]:
                kept.append(b)
        polygon = np.array(kept).reshape(-1, 2)
        if len(polygon) < 3:
            return np.zeros((0, 2))
    return polygon


@dataclass(frozen=True)
class Box:
    """A solid with the bounds `low` and `high`. `bars` draws that many stripes of colour `bar`
    across its length (z) on the faces that show. `round` makes it a rounded prism (a pillow, a
    pot), whose top is a rounded rectangle.
    """
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    colour: Colour
    bars: int = 0
    bar: Colour = (0, 0, 0)
    bar_axis: int = 2
    round: bool = False
    key: bool = False  # evidence: the answer hangs on this part, so most of it must be visible

    def corners(self) -> np.ndarray:
        """`[8, 3]`."""
        (x0, y0, z0), (x1, y1, z1) = self.low, self.high
        return np.array([(x, y, z) for x in (x0, x1) for y in (y0, y1) for z in (z0, z1)])


@dataclass(frozen=True)
class Piece:
    """A piece of furniture; before it is placed, its middle is at x = z = 0 and its head at +z.

    Attributes:
        kind: `single`, `double`, `bunk`; other names are not beds.
        boxes: its parts; disjoint, so that they can be painted one by one.
        head: the point that marks it (a bed's pillow, otherwise its middle).
    """
    kind: str
    boxes: tuple[Box, ...]
    head: tuple[float, float, float] = (0.0, 0.0, 0.0)
    shadow: bool = True

    @cached_property
    def low(self) -> np.ndarray:
        """Lowest corner, `[3]`."""
        return np.array([box.low for box in self.boxes]).min(axis=0)

    @cached_property
    def high(self) -> np.ndarray:
        """Highest corner, `[3]`."""
        return np.array([box.high for box in self.boxes]).max(axis=0)

    def placed(self, quarter: int, x: float, z: float) -> 'Piece':
        """Turned by `quarter` quarter turns (1: head to -x, 2: head to the viewer, 3: head to +x)
        and moved."""

        def move(point):
            px, py, pz = point
            px, pz = [(px, pz), (-pz, px), (-px, -pz), (pz, -px)][quarter % 4]
            return px + x, py, pz + z

        boxes = []
        for box in self.boxes:
            a, b = move(box.low), move(box.high)
            axis = {0: 2, 2: 0}.get(box.bar_axis, 1) if quarter % 2 else box.bar_axis
            boxes.append(
                replace(box, low=tuple(map(min, a, b)), high=tuple(map(max, a, b)), bar_axis=axis))
        return replace(self, boxes=tuple(boxes), head=move(self.head))


def paint_order(lows: np.ndarray, highs: np.ndarray, eye: np.ndarray) -> list[int]:
    """Indices of disjoint boxes (`lows`, `highs`: `[n, 3]`) so that none hides one that is painted
    after it.

    Two boxes that an axis-aligned plane separates are ordered by the side of it on which the eye
    is; where boxes hide each other in a circle, the farthest comes first.
    """
    count, eps = len(lows), 1e-6
    behind = np.zeros((count, count), bool)
    for k in range(3):
        behind |= (lows[:, None, k] >= highs[None, :, k] - eps) & (eye[k]
                                                                   <= lows[:, None, k] + eps)
        behind |= (highs[:, None, k] <= lows[None, :, k] + eps) & (eye[k]
                                                                   >= highs[:, None, k] - eps)
    first = behind & ~behind.T
    distance = np.linalg.norm((lows + highs) / 2 - eye, axis=1)
    order, left = [], list(np.argsort(-distance))
    while left:
        free = [i for i in left if not first[left, i].any()] or left
        order.append(int(free[0]))
        left.remove(free[0])
    return order
