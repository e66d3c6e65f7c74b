"""Decoding that fails where an image is damaged, so that a damaged image never gets a label.

LMDeploy replaces a file that it cannot read by a black image and answers that. So every image is
decoded here, in full, before an engine sees it; engines are given pixels or bytes that are known
to be good, and preprocess them as they always do.
"""
import io
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Iterator, Optional

from PIL import Image, ImageFile

from .errors import ImageError

# Pillow's own limit against decompression bombs: a quarter of a gigabyte of RGB.
MAX_PIXELS = 89_478_485
# What Pillow's decoders raise on damaged files.
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, KeyError,
                  TypeError, OverflowError, MemoryError, Image.DecompressionBombError,
                  Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Picture:
    """An image that decodes in full.

    Attributes:
        data: the encoded bytes as they came.
        media_type: for example `image/jpeg`.
        rgb: the pixels, converted as LMDeploy converts them (first frame, no EXIF rotation, alpha
            dropped); None where only the check was wanted.
    """
    data: bytes
    media_type: str
    rgb: Optional[Image.Image]


def decode(data: bytes, keep_pixels: bool, max_pixels: int = MAX_PIXELS) -> Picture:
    """Decode an image in full; blocks, so it belongs on a worker thread.

    Call it within `strict_decoding`.

    Raises:
        ImageError: the data is no image, is damaged or cut off, or has more than `max_pixels`.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise ImageError(f'{width}x{height} pixels; expected {max_pixels} pixels at most')
            media_type = image.get_format_mimetype() or 'image/unknown'
            image.load()
            # conversion to the same mode would copy the pixels
            rgb = image if image.mode == 'RGB' else image.convert('RGB')
    except Image.UnidentifiedImageError as error:
        raise ImageError(f'not an image; the data begins with {data[:16]!r}') from error
    except _DECODE_ERRORS as error:
        raise ImageError(
            f'the image cannot be decoded: {error or type(error).__name__}') from error
    return Picture(data, media_type, rgb if keep_pixels else None)


@contextmanager
def strict_decoding() -> Iterator[None]:
    """Within this block Pillow reports truncated files, whatever LMDeploy does.

    LMDeploy's `load_image` sets Pillow's process-wide `LOAD_TRUNCATED_IMAGES` each time it is
    called; from then on truncated files decode without an error, missing parts grey. While the
    block is open, LMDeploy's loader (where it has been imported) sets that flag on an object that
    nobody reads. Its own results do not change: here it is only given pixels, never files.
    """
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    loader = sys.modules.get('lmdeploy.vl.utils')
    if loader is not None:
        loader.ImageFile = SimpleNamespace(LOAD_TRUNCATED_IMAGES=True)
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = tolerant
        if loader is not None:
            loader.ImageFile = ImageFile
