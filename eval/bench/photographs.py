"""Photographs to measure with: a folder's, or those that scikit-image ships; and one in any size.

Only what lies inside scikit-image's wheel is used: nothing is downloaded.
"""
import importlib.util
from pathlib import Path
from typing import List

import cv2
import numpy as np
from PIL import Image

from ..errors import EvalError

SHIPPED = ('astronaut.png', 'brick.png', 'camera.png', 'chelsea.png', 'coffee.png', 'coins.png',
           'grass.png', 'gravel.png', 'hubble_deep_field.jpg', 'motorcycle_left.png',
           'motorcycle_right.png', 'retina.jpg', 'rocket.jpg')
# The most detailed of the shipped ones: an interior, 741x500.
SCENE = 'motorcycle_left.png'
# Enlarged further, a photograph has less to compress a pixel than a camera's picture of that size;
# at 2 its 12-megapixel JPEG has 2.5 MB.
MAX_ENLARGEMENT = 2.0
SAVE_OPTIONS = {'JPEG': {'quality': 90}, 'PNG': {'compress_level': 3}, 'WebP': {'quality': 90}}


def shipped() -> List[Path]:
    """The photographs inside scikit-image's wheel.

    Raises:
        EvalError: scikit-image is not installed.
    """
    found = importlib.util.find_spec('skimage')
    if found is None or not found.submodule_search_locations:
        raise EvalError('scikit-image, whose photographs are measured by default, is not '
                        "installed; run make setup, or pip install 'lmdeploy-ext[bench]'")
    return [Path(found.submodule_search_locations[0], 'data', name) for name in SHIPPED]


def folder_files(folder: Path) -> List[Path]:
    """All files below a folder, sorted; whether they are images is seen when they are read.

    Raises:
        EvalError: no such folder, or no file in it.
    """
    if not folder.is_dir():
        raise EvalError(f'no folder of photographs {folder}; expected --photos FOLDER (make '
                        f'bench-images PHOTOS=folder) with image files in it')
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    if not files:
        raise EvalError(f'no file in the folder of photographs {folder}; put JPEG, PNG or WebP '
                        f'files there, or leave --photos out for those that scikit-image ships')
    return files


def scene(width: int, height: int) -> np.ndarray:
    """A photograph of exactly this size, uint8 RGB `[height, width, 3]`.

    The shipped `SCENE`, scaled until it covers the size but enlarged to twice its own at most;
    beyond that it goes on mirrored.
    """
    with Image.open(next(path for path in shipped() if path.name == SCENE)) as image:
        photograph = np.asarray(image.convert('RGB'))
    own_height, own_width = photograph.shape[:2]
    scale = min(max(width / own_width, height / own_height), MAX_ENLARGEMENT)
    scaled = cv2.resize(photograph, (max(1, round(own_width * scale)),
                                     max(1, round(own_height * scale))),
                        interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    missing = [(0, max(0, size - have)) for size, have in zip((height, width), scaled.shape)]
    return np.pad(scaled, [*missing, (0, 0)], mode='symmetric')[:height, :width]


def write_scene(folder: Path, width: int, height: int, form: str) -> Path:
    """Write `scene` as `form`, a key of `SAVE_OPTIONS`; returns the file's path."""
    path = folder / f'{width}x{height}.{form.lower()}'
    Image.fromarray(scene(width, height)).save(path, form, **SAVE_OPTIONS[form])
    return path
