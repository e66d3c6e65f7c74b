"""One picture of the demo set, drawn from (seed, split, index) alone."""
from dataclasses import dataclass

import cv2
import numpy as np

from .beds import BEDS
from .layout import make_scene
from .paint import paint
from .photo import photograph
from .questions import label
from .scene import Scene, class_map
from .shell import finish

#: Goes up with every change of what is drawn: sets of different versions are never mixed.
VERSION = 7
CLASS_STEP = 8  # pixels of the picture for one of its class map
SPLITS = {'train': 0, 'calibration': 1, 'test': 2}
#: (longer side, shorter side) in pixels, share of the pictures, share of those that stand upright.
SIZES = (((480, 320), 0.11, 0.25), ((480, 360), 0.11, 0.25), ((612, 464), 0.13, 0.25),
         ((640, 480), 0.15, 0.25), ((960, 720), 0.22, 0.30), ((1344, 896), 0.28, 0.70))


@dataclass(frozen=True)
class Mark:
    """Where something is: kind of the piece; u, v of its head as parts of the width and height."""
    kind: str
    u: float
    v: float


@dataclass(frozen=True)
class Picture:
    """Attributes:
        id: `split-index`.
        jpeg: the file's bytes.
        sort: the sort of room, see layout.py.
        marks: beds, and what may be taken for one.
        classes: what is where, uint8 `[height // 8, width // 8]` of `scene.CLASSES`.
    """
    id: str
    jpeg: bytes
    width: int
    height: int
    beds: int
    bunks: int
    sort: str
    marks: tuple[Mark, ...]
    classes: np.ndarray

    def row(self, split: str) -> dict:
        """The picture's line of the manifest."""
        return {
            'id': self.id,
            'image': f'images/{self.id}.jpg',
            'label': label(self.beds, self.bunks),
            'split': split,
            'width': self.width,
            'height': self.height,
            'beds': self.beds,
            'bunks': self.bunks,
            'sort': self.sort
        }

    def pixels(self) -> np.ndarray:
        """The decoded file: uint8 RGB `[height, width, 3]`."""
        return cv2.imdecode(np.frombuffer(self.jpeg, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def _generator(seed: int, split: str, index: int) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS[split], index])


def _size(rng: np.random.Generator) -> tuple[int, int]:
    (long, short), _, upright = SIZES[rng.choice(len(SIZES), p=[share for _, share, _ in SIZES])]
    return (short, long) if rng.random() < upright else (long, short)


def size_of(split: str, seed: int, index: int) -> tuple[int, int]:
    """Width and height of a picture, without drawing it."""
    return _size(_generator(seed, split, index))


def draw(split: str, seed: int, index: int) -> Picture:
    """Draw a picture. Equal arguments give equal bytes with equal releases of NumPy and OpenCV."""
    rng = _generator(seed, split, index)
    width, height = _size(rng)
    scene = make_scene(rng, width, height)
    image = paint(scene, finish(rng, scene.room), line=rng.random() < 0.8)
    jpeg = photograph(rng, image, scene.daylight)
    return Picture(f'{split}-{index:06d}', jpeg, width, height, scene.beds(), scene.bunks(),
                   scene.sort, _marks(scene), class_map(scene, CLASS_STEP))


def _marks(scene: Scene) -> tuple[Mark, ...]:
    kinds = BEDS + ('bench', 'frame', 'rack', 'sofa')
    marks, camera = [], scene.camera
    for piece in scene.pieces:
        right, up, forward = camera.view(np.array([piece.head]))[0]
        if piece.kind not in kinds or forward < 0.2:
            continue
        scale = camera.focal / forward
        u, v = 0.5 + scale * right / camera.width, 0.5 - scale * up / camera.height
        if 0 <= u < 1 and 0 <= v < 1:
            marks.append(Mark(piece.kind, float(u), float(v)))
    return tuple(marks)
