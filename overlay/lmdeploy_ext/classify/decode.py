"""What an engine gets of an image, so that a damaged one never gets a label.

Stock LMDeploy replaces a file that it cannot read by a black image and answers that. So where the
engine may be stock, every image is decoded here, in full, before the engine sees it.
"""
from dataclasses import dataclass, replace
from enum import Enum
from typing import Optional

from PIL import Image

from lmdeploy_ext.vl.image_decode import PixelRules, decode
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_limits import ImageLimits


class Needs(Enum):
    """What an engine needs to be given.

    Attributes:
        BYTES: it decodes images itself, and reports those that it cannot.
        CHECKED: bytes of which it is known that they decode in full.
        PIXELS: likewise, and the pixels.
    """
    BYTES = 'bytes'
    CHECKED = 'checked'
    PIXELS = 'pixels'


@dataclass(frozen=True)
class Picture:
    """An image.

    Attributes:
        data: the encoded bytes as they came.
        media_type: for example `image/jpeg`.
        rgb: the pixels, converted as stock LMDeploy converts them (first frame, no EXIF rotation,
            alpha dropped); None where they are not needed.
    """
    data: bytes
    media_type: str
    rgb: Optional[Image.Image] = None


def open_picture(data: bytes, needs: Needs, limits: ImageLimits) -> Picture:
    """Look at an image as closely as is needed; blocks, so it belongs on a worker thread.

    Raises:
        UnreadableImage: it is no image, or larger than the limits; if `needs` says so, also: it is
            damaged or cut off.
    """
    rules = PixelRules(upstream=needs is Needs.PIXELS)
    header = read_header(data, limits, rules)
    picture = Picture(data, Image.MIME.get(header.format, 'image/unknown'))
    if needs is Needs.BYTES:
        return picture
    if needs is Needs.CHECKED:
        # all of the file is read whatever the size of the result
        decode(data, header, rules, at_least=(1, 1))
        return picture
    return replace(picture, rgb=Image.fromarray(decode(data, header, rules)))
