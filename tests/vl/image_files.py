"""Encoded images for tests: good ones of each kind, and every kind of bad one."""
import base64
import io
import struct
import zlib
from typing import Optional

import cv2
import numpy as np
from PIL import ExifTags, Image

HTML = b'<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body></body></html>\n'
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>\n'
PDF = b'%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n%%EOF\n'


def picture(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with some grain, which codecs treat like a photograph; uint8 [h, w, c]."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (8, 8, channels), np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    grain = rng.integers(-6, 7, (height, width, channels))
    return (smooth.reshape(grain.shape) + grain).clip(0, 255).astype(np.uint8)


def encoded(image, file_format: str, orientation: Optional[int] = None, **options) -> bytes:
    """A PIL image or an array as a file of the format (Pillow's name and options)."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    if orientation is not None:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        options['exif'] = exif
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def jpeg(width: int, height: int, orientation: Optional[int] = None, **options) -> bytes:
    return encoded(picture(width, height), 'JPEG', orientation, **options)


def animated(file_format: str, width: int = 48, height: int = 32, frames: int = 3) -> bytes:
    """GIF, WEBP or PNG (APNG); each frame another picture."""
    first, *others = (Image.fromarray(picture(width, height, seed=seed)) for seed in range(frames))
    return encoded(first, file_format, save_all=True, append_images=others, duration=40)


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    return (struct.pack('>I', len(payload)) + kind + payload
            + struct.pack('>I', zlib.crc32(kind + payload)))


def png_bomb(width: int = 30_000, height: int = 30_000) -> bytes:
    """A small file whose header promises gigabytes, as RGB of eight bits."""
    header = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + png_chunk(b'IHDR', header)
            + png_chunk(b'IDAT', zlib.compress(bytes(1 << 20), 9)) + png_chunk(b'IEND', b''))


def data_url(data: bytes, media_type: str = 'image/jpeg') -> str:
    return f'data:{media_type};base64,{base64.b64encode(data).decode("ascii")}'


def cut(data: bytes, share: float = 0.6) -> bytes:
    return data[:int(len(data) * share)]


def pillow_rgb(data: bytes) -> np.ndarray:
    """What upstream makes of a good file: uint8 [h, w, 3]."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert('RGB'))
