"""Decoding: damaged images are found, good ones keep the pixels that LMDeploy would see."""
import base64
import io
import struct
import sys
import zlib
from types import ModuleType

import numpy as np
import pytest
from PIL import Image, ImageFile

from lmdeploy_ext.classify.decode import decode, strict_decoding
from lmdeploy_ext.classify.errors import ImageError
from lmdeploy_ext.classify.item import Item
from lmdeploy_ext.classify.load import Loader


def encoded(format_, mode='RGB', size=(64, 48), **options):
    """A noisy image: its compressed data is long enough to be cut."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format_, **options)
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def strict():
    with strict_decoding():
        yield


@pytest.mark.parametrize('format_, mode', [
    ('JPEG', 'RGB'),
    ('JPEG', 'L'),
    ('JPEG', 'CMYK'),
    ('PNG', 'RGBA'),
    ('PNG', 'P'),
    ('PNG', '1'),
    ('PNG', 'I;16'),
    ('GIF', 'P'),
    ('WEBP', 'RGB'),
    ('BMP', 'RGB'),
    ('TIFF', 'RGB'),
])
def test_pixels_are_those_of_pillows_conversion(format_, mode):
    if mode == 'I;16':
        buffer = io.BytesIO()
        Image.fromarray(np.arange(3072, dtype=np.uint16).reshape(48, 64)).save(buffer, format_)
        data = buffer.getvalue()
    else:
        data = encoded(format_, mode)
    picture = decode(data, keep_pixels=True)
    assert picture.data == data and picture.media_type == f'image/{format_.lower()}'
    assert picture.rgb.mode == 'RGB'
    expected = Image.open(io.BytesIO(data)).convert('RGB')
    assert np.array_equal(np.asarray(picture.rgb), np.asarray(expected))
    assert decode(data, keep_pixels=False).rgb is None


def test_exif_rotation_is_left_to_nobody_as_lmdeploy_does():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded('JPEG', exif=exif), True).rgb.size == (64, 48)


@pytest.mark.parametrize('format_', ['JPEG', 'PNG', 'WEBP', 'BMP', 'TIFF', 'GIF'])
@pytest.mark.parametrize('kept', [0.3, 0.6, 0.95])
def test_a_truncated_file_is_an_error(format_, kept):
    data = encoded(format_)
    with pytest.raises(ImageError):
        decode(data[:int(kept * len(data))], True)


def test_a_truncated_file_is_an_error_after_lmdeploy_has_loaded_an_image(monkeypatch):
    """LMDeploy's `load_image` makes Pillow tolerate truncated files, process-wide."""
    loader = ModuleType('lmdeploy.vl.utils')
    loader.ImageFile = ImageFile
    monkeypatch.setitem(sys.modules, 'lmdeploy.vl.utils', loader)
    with strict_decoding():
        loader.ImageFile.LOAD_TRUNCATED_IMAGES = True
        with pytest.raises(ImageError, match='truncated'):
            decode(encoded('JPEG')[:-500], True)
    assert loader.ImageFile is ImageFile


@pytest.mark.parametrize('data, message', [
    (b'<!DOCTYPE html><html>', r"not an image; the data begins with b'<!DOCTYPE html><'"),
    (b'\xff\xd8\xff', 'not an image|cannot be decoded'),
    (b'x', 'not an image'),
])
def test_what_is_no_image_is_an_error(data, message):
    with pytest.raises(ImageError, match=message):
        decode(data, True)


def test_a_decompression_bomb_is_an_error_before_it_is_decoded():
    data = bytearray(encoded('PNG'))
    data[16:24] = struct.pack('>II', 30_000, 30_000)  # width and height in the IHDR chunk
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    with pytest.raises(ImageError, match='exceeds limit'):
        decode(bytes(data), True)
    with pytest.raises(ImageError, match='64x48 pixels; expected 3000 pixels at most'):
        decode(encoded('PNG'), True, max_pixels=3000)


def test_bytes_come_from_files_and_data_urls(tmp_path):
    loader = Loader()
    (tmp_path / 'a.jpg').write_bytes(b'abc')
    assert loader.load(Item('a', str(tmp_path / 'a.jpg'))) == b'abc'
    url = 'data:image/png;base64,' + base64.b64encode(b'abc').decode()
    assert loader.load(Item('a', url)) == b'abc'
    assert loader.load(Item('a', 'data:,a%20b')) == b'a b'
    loader.close()


@pytest.mark.parametrize('image, message', [
    ('/nowhere/a.jpg', 'cannot read the file: No such file'),
    ('/tmp', 'cannot read the file: Is a directory'),
    ('a\0b.jpg', 'cannot read the file: embedded null byte'),
    ('\ud800.jpg', 'cannot read the file: .* surrogates not allowed'),
    ('data:image/png;base64,', 'empty'),
    ('data:image/png;base64,@@@', 'not base64'),
    ('data:image/png;base64', 'without data'),
    ('http://127.0.0.1:9/a.jpg', 'cannot fetch the URL'),
    ('http://[oops/a.jpg', 'cannot fetch the URL'),
])
def test_what_cannot_be_loaded_is_an_error(image, message):
    loader = Loader()
    with pytest.raises(ImageError, match=message):
        loader.load(Item('a', image))
    loader.close()
