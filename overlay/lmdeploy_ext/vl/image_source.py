"""From what a request calls an image to its encoded bytes, or to the pixels it already is."""
import os
import re
import stat
import threading
from typing import Any, Union
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image, ImageFile

from .image_data_url import SCHEME as DATA_SCHEME
from .image_data_url import read_data_url
from .image_decode import oriented
from .image_errors import BadImageReference, UnreadableImage, shortened
from .image_fetch import fetch
from .image_header import UPRIGHT, exif_orientation
from .image_limits import ImageLimits
from .image_pillow import to_rgb
from .image_rules import PixelRules

_EXPECTED = ('a path, an http(s), file or data URL, bytes, a PIL image, or a uint8 array '
             '[h, w], [h, w, 1], [h, w, 3] or [h, w, 4]')
_REMOTE = ('http://', 'https://')
# How much is read of a file that says it is empty, as those of /proc do.
_SIZELESS_BYTES = 1 << 20
_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]+://')
# One PIL image may be in several requests, and loads its pixels on first use, unguarded.
_LOADING = tuple(threading.Lock() for _ in range(16))


def is_remote(reference: Any) -> bool:
    """Whether reading a reference waits for the network."""
    return isinstance(reference, str) and reference[:8].lower().startswith(_REMOTE)


def read(reference: Any, limits: ImageLimits,
         rules: PixelRules = PixelRules()) -> Union[bytes, np.ndarray]:
    """The encoded bytes that a reference leads to, or its pixels where it holds pixels.

    Args:
        reference: a path, an http(s), file or data URL, bytes-like data, a PIL image, or a uint8
            array in RGB or RGBA order.
        rules: how a PIL image or an array becomes RGB; files are decoded elsewhere.

    Returns:
        bytes, not yet known to be an image; or uint8 RGB [h, w, 3], within the limits. An RGB
        array comes back as it is, not copied.

    Raises:
        UnreadableImage: of the kind that says what is wrong (see `image_errors`).
    """
    if isinstance(reference, str):
        return _from_text(reference, limits)
    if isinstance(reference, Image.Image):
        return _from_pillow(reference, limits, rules)
    if isinstance(reference, np.ndarray):
        return _from_array(reference, limits, rules)
    if isinstance(reference, (bytes, bytearray, memoryview)):
        limits.check_bytes(memoryview(reference).nbytes)
        return bytes(reference)
    if isinstance(reference, os.PathLike):
        return _from_path(os.fsdecode(reference), limits)
    raise BadImageReference(f'found an image of type {type(reference).__name__}; expected '
                            f'{_EXPECTED}; convert it')


def _from_text(reference: str, limits: ImageLimits) -> bytes:
    if is_remote(reference):
        return fetch(reference, limits)
    if reference[:len(DATA_SCHEME)].lower() == DATA_SCHEME:
        return read_data_url(reference, limits)
    if reference[:7].lower() == 'file://':
        return _from_path(_local_path(reference), limits)
    scheme = _URL.match(reference)
    if scheme:
        raise BadImageReference(f'found a URL that begins with {scheme.group()}; expected '
                                f'{_EXPECTED}; give one of these')
    return _from_path(reference, limits)


def _local_path(url: str) -> str:
    """The path of a file URL (RFC 8089)."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadImageReference('found a malformed file URL; expected file:///path; '
                                'correct it') from error
    if parts.netloc not in ('', 'localhost'):
        raise BadImageReference(f'found {shortened(url)}, a file of another host; expected '
                                'file:///path; copy the file here, or give an http(s) URL')
    return unquote(parts.path)


def _from_path(path: str, limits: ImageLimits) -> bytes:
    try:
        data = _content(path, limits)
    except OSError as error:
        raise BadImageReference(f'{shortened(path)} cannot be read: {error.strerror}; expected '
                                'an image file; check the path') from error
    except UnreadableImage:
        raise
    except ValueError as error:
        raise BadImageReference(f'{shortened(path)} is no path; expected {_EXPECTED}; '
                                'correct it') from error
    # a file that grew meanwhile, or does not know its size
    limits.check_bytes(len(data))
    return data


def _content(path: str, limits: ImageLimits) -> bytes:
    with open(path, 'rb', opener=_open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadImageReference(f'{shortened(path)} is a device or a pipe; expected a file; '
                                    'give the path of an image')
        limits.check_bytes(status.st_size)
        # read() takes memory for all it is asked for, and the limit may be "as good as none";
        # nothing (None) comes of a file of the kernel's that would have to be waited for
        return file.read(min(limits.max_bytes, max(status.st_size, _SIZELESS_BYTES)) + 1) or b''


def _open_without_waiting(path: str, flags: int) -> int:
    # a pipe that nobody writes to would otherwise be waited for
    return os.open(path, flags | os.O_NONBLOCK)


def _from_pillow(image: Image.Image, limits: ImageLimits, rules: PixelRules) -> np.ndarray:
    """An image that was opened and not touched is its file, orientation included.

    Any other is the pixels it has: Pillow hands the orientation of the file on to whatever is
    made of the image, rotated by hand or not.
    """
    _check_sides(*image.size, limits)
    opened = isinstance(image, ImageFile.ImageFile)
    with _LOADING[id(image) % len(_LOADING)]:
        if opened and image.tile and image.fp is None:
            raise BadImageReference('found a PIL image whose file was closed before its pixels '
                                    'were read; expected an open or loaded one; call its load()')
        pixels = to_rgb(image, rules)
        # after loading: a PNG file's EXIF may stand behind its pixels
        turn = opened and not rules.upstream
        orientation = exif_orientation(image) if turn else UPRIGHT
    return oriented(pixels, orientation)


def _from_array(array: np.ndarray, limits: ImageLimits, rules: PixelRules) -> np.ndarray:
    if array.ndim == 2:
        array = array[..., np.newaxis]
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise BadImageReference(f'found a {array.dtype} array of shape {array.shape}; expected '
                                f'{_EXPECTED}; convert it')
    height, width, channels = array.shape
    _check_sides(width, height, limits)
    if channels == 1:
        return np.broadcast_to(array, (height, width, 3)).copy()
    if channels == 4:
        return to_rgb(Image.fromarray(np.ascontiguousarray(array)), rules)
    return np.ascontiguousarray(array)


def _check_sides(width: int, height: int, limits: ImageLimits) -> None:
    if not width or not height:
        raise BadImageReference(f'found an image of {width}x{height} pixels; expected one pixel '
                                'at least; leave it out')
    limits.check_size(width, height)
