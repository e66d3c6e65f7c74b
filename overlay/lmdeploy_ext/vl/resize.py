"""Resizing with OpenCV: averages over areas where an axis shrinks, cubic where it grows.

Cubic alone would alias where an axis shrinks, for OpenCV's kernel does not widen as that of
Pillow, upstream's, does; area alone is nearest neighbour where an axis grows. An axis that shrinks
to 1/1.125 or more is nearer to Pillow's with cubic, and five times as fast: 1836x1377 at 1/1.036
takes 3.2 ms instead of 14.5, and over 30 photographs has a median PSNR of 47 dB instead of 42
against Pillow's bicubic. At 1/1.125 it is 44 and 43 dB; from 1/1.2 on area is nearer.
"""
from typing import Optional

import cv2
import numpy as np
from PIL import Image

CUBIC_SHRINK = 1.125  # up to this an axis shrinks by cubic interpolation


def resize(image: np.ndarray,
           width: int,
           height: int,
           out: Optional[np.ndarray] = None) -> np.ndarray:
    """Resize an image, each axis by its own rule. Where the rules differ, the axis that shrinks
    goes first: fewer pixels are left for the other.

    Args:
        image: uint8 [h, w, 3].
        width, height: wanted, in pixels, at least 1.
        out: uint8 [height, width, 3] to write to; a part of a larger array is fine where the
            pixels of a row lie next to each other.

    Returns:
        uint8 [height, width, 3]: `out`, or a new array, or where there is nothing to resize and no
        `out`, the image itself.
    """
    if out is not None and (out.shape != (height, width, 3) or out.dtype != np.uint8):
        raise ValueError(f'out is {out.dtype} {list(out.shape)}; '
                         f'uint8 {[height, width, 3]} is needed')
    old_height, old_width = image.shape[:2]
    if (old_width, old_height) == (width, height):
        if out is None:
            return image
        out[:] = image
        return out
    averaged_width = width if old_width > width * CUBIC_SHRINK else old_width
    averaged_height = height if old_height > height * CUBIC_SHRINK else old_height
    if (averaged_width, averaged_height) == (width, height):
        return cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    if (averaged_width, averaged_height) != (old_width, old_height):
        image = cv2.resize(image, (averaged_width, averaged_height), interpolation=cv2.INTER_AREA)
    return cv2.resize(image, (width, height), dst=out, interpolation=cv2.INTER_CUBIC)


def resize_as_upstream(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Pillow's bicubic, bit for bit what upstream's `image.resize((width, height))` gives.

    Args:
        image: uint8 [h, w, 3].

    Returns:
        uint8 [height, width, 3], read-only.
    """
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
