"""The pixels of an image by this process's settings, for what does not go through tiles."""
import functools
from typing import Any, Union

import numpy as np
from PIL import Image

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl import image_source
from lmdeploy_ext.vl.image_decode import decode
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_settings import ImageSettings


def load_pil(reference: Any) -> Image.Image:
    """An image in RGB, all of it; blocks.

    Args:
        reference: whatever `image_source.read` takes.

    Raises:
        UnreadableImage: it cannot be used.
    """
    settings = _settings()
    return Image.fromarray(decode_all(read(reference, settings), settings))


def read(reference: Any, settings: ImageSettings) -> Union[bytes, np.ndarray]:
    """`image_source.read`, with the pixels of a Pillow image by the settings' rules."""
    if settings.rules.upstream and isinstance(reference, Image.Image):
        reference = reference.convert('RGB')
    return image_source.read(reference, settings.limits)


def decode_all(content: Union[bytes, np.ndarray], settings: ImageSettings) -> np.ndarray:
    """uint8 RGB [h, w, 3] of what `read` returned.

    Raises:
        UnreadableImage: it is damaged, too large, or no image.
    """
    if isinstance(content, np.ndarray):
        return content
    header = read_header(content, settings.limits, settings.rules)
    return decode(content, header, settings.rules)


@functools.lru_cache(maxsize=None)
def _settings() -> ImageSettings:
    return ImageSettings.of(Settings.from_env())
