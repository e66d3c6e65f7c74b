"""The pixels of an image by this process's settings, for what does not go through tiles."""
import io
from typing import Any, Union

import numpy as np
from PIL import Image

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.image_decode import decode
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_source import read


def load_pil(reference: Any) -> Image.Image:
    """An image in RGB, all of it; blocks.

    Args:
        reference: whatever `read` takes.

    Raises:
        UnreadableImage: it cannot be used.
    """
    settings = ImageSettings.of(Settings.from_env())
    content = read(reference, settings.limits, settings.rules)
    return Image.fromarray(decode_all(content, settings))


def as_file(reference: Any) -> bytes:
    """An image as an encoded file: as it came, or as PNG where the reference holds pixels; blocks.

    Raises:
        UnreadableImage: it cannot be read, or is no image.
    """
    settings = ImageSettings.of(Settings.from_env())
    content = read(reference, settings.limits, settings.rules)
    if isinstance(content, np.ndarray):
        file = io.BytesIO()
        Image.fromarray(content).save(file, 'PNG')
        return file.getvalue()
    read_header(content, settings.limits, settings.rules)
    return content


def decode_all(content: Union[bytes, np.ndarray], settings: ImageSettings) -> np.ndarray:
    """uint8 RGB [h, w, 3] of what `read` returned.

    Raises:
        UnreadableImage: it is damaged, too large, or no image.
    """
    if isinstance(content, np.ndarray):
        return content
    header = read_header(content, settings.limits, settings.rules)
    return decode(content, header, settings.rules)
