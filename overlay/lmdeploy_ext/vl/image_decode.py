"""Encoded images to RGB pixels: OpenCV where it decodes as Pillow does, Pillow for the rest.

Blocks, and lets other threads run meanwhile; belongs on a worker thread.
"""
from typing import Optional, Tuple

import cv2
import numpy as np

from . import image_jpeg, image_png
from .image_errors import DamagedImage
from .image_header import ImageHeader, swaps_axes
from .image_pillow import open_image, to_rgb
from .image_rules import PixelRules

__all__ = ['PixelRules', 'decode', 'oriented']

_JPEG_FORMATS = ('JPEG', 'MPO')
# OpenCV's pixels equal Pillow's in these; CMYK differs, and alpha must not be lost.
_OPENCV_MODES = {'JPEG': ('RGB', 'L'), 'MPO': ('RGB', 'L'), 'PNG': ('RGB', 'L', 'P'),
                 'WEBP': ('RGB', )}
_SCALED = ((8, cv2.IMREAD_REDUCED_COLOR_8), (4, cv2.IMREAD_REDUCED_COLOR_4),
           (2, cv2.IMREAD_REDUCED_COLOR_2))
# Bytes that stay in a core's cache while their channels are swapped.
_SWAP_BYTES = 1 << 17


def decode(data: bytes, header: ImageHeader, rules: PixelRules,
           at_least: Optional[Tuple[int, int]] = None) -> np.ndarray:
    """Decode an image whose header `read_header` has read, with the same rules.

    Args:
        at_least: (width, height) in pixels that the caller has a use for. A JPEG then may come
            scaled down to 1/2, 1/4 or 1/8, the sides rounded up, if that is as large on both
            axes: the decoder leaves out the frequencies that a smaller picture does not have.

    Returns:
        uint8 RGB [h, w, 3]; without `at_least`, of the header's size.

    Raises:
        DamagedImage: not every pixel is there, or the file is corrupt.
        UnreadableImage: pixels of a kind that has no 8-bit meaning (32 bits, floating point).
    """
    if header.format in _JPEG_FORMATS:
        data = image_jpeg.completed(data)
    elif header.format == 'PNG':
        image_png.check_sums(data)
    elif header.format == 'JPEG2000':
        _check_jpeg2000(data)
    pixels = None
    if not rules.upstream and _opencv_suits(header):
        pixels = _by_opencv(data, header, at_least)
    if pixels is None:
        # Pillow is the judge of what OpenCV cannot read, too
        with open_image(data) as image:
            pixels = to_rgb(image, rules)
    return oriented(pixels, header.orientation)


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Apply an EXIF orientation (CIPA DC-008, tag 274) to uint8 [h, w, 3]."""
    if orientation == 2:
        return cv2.flip(pixels, 1)
    if orientation == 3:
        return cv2.rotate(pixels, cv2.ROTATE_180)
    if orientation == 4:
        return cv2.flip(pixels, 0)
    if orientation == 5:
        return cv2.transpose(pixels)
    if orientation == 6:
        return cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE)
    if orientation == 7:
        return cv2.rotate(cv2.transpose(pixels), cv2.ROTATE_180)
    if orientation == 8:
        return cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE)
    return pixels


def _check_jpeg2000(data: bytes) -> None:
    """Raises DamagedImage where the codestream lacks its end: its decoder fills in what is not.

    In a codestream, from its start (SOC, SIZ) to its end (EOC), no other 0xff stands before a
    byte above 0x8f (ITU-T T.800, annex A).
    """
    if data.find(b'\xff\xd9', max(0, data.find(b'\xff\x4f\xff\x51'))) < 0:
        raise DamagedImage(f'the JPEG 2000 file is cut off after {len(data)} bytes; expected a '
                           'complete file; send it again')


def _opencv_suits(header: ImageHeader) -> bool:
    return (header.mode in _OPENCV_MODES.get(header.format, ()) and not header.animated
            and not header.transparent)


def _by_opencv(data: bytes, header: ImageHeader,
               at_least: Optional[Tuple[int, int]]) -> Optional[np.ndarray]:
    """Pixels as stored; None where OpenCV does not read the file, or reads another size."""
    scale, flag = 1, cv2.IMREAD_COLOR
    if header.format == 'PNG':
        data = image_png.pixel_chunks(data)
        if data is None:
            return None
    elif header.format in _JPEG_FORMATS and at_least is not None:
        scale, flag = _reduction(header, at_least)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        # over a limit of OpenCV's own
        return None
    width, height = header.stored_size
    if pixels is None or pixels.shape[:2] != (-(-height // scale), -(-width // scale)):
        return None
    if header.mode != 'L':
        _swap_channels(pixels)
    return pixels


def _reduction(header: ImageHeader, at_least: Tuple[int, int]) -> Tuple[int, int]:
    """The strongest reduction that leaves at least so many pixels, and OpenCV's flag for it."""
    width, height = header.stored_size
    needed_width, needed_height = at_least[::-1] if swaps_axes(header.orientation) else at_least
    for scale, flag in _SCALED:
        if -(-width // scale) >= needed_width and -(-height // scale) >= needed_height:
            return scale, flag
    return 1, cv2.IMREAD_COLOR


def _swap_channels(pixels: np.ndarray) -> None:
    """BGR to RGB where it stands, a few rows at a time: OpenCV first copies what it overwrites."""
    height, width = pixels.shape[:2]
    rows = max(1, _SWAP_BYTES // (3 * width))
    for top in range(0, height, rows):
        band = pixels[top:top + rows]
        cv2.cvtColor(band, cv2.COLOR_BGR2RGB, dst=band)
