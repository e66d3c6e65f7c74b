"""Sizes, formats and limits, known before any pixel is decoded."""
import struct
import time

import pytest
from PIL import Image

from lmdeploy_ext.vl.image_errors import DamagedImage, ImageTooLarge, NotAnImage, UnreadableImage
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_rules import PixelRules

from .image_files import HTML, PDF, SVG, animated, encoded, jpeg, picture, png_bomb, png_chunk

LIMITS = ImageLimits()
RULES = PixelRules()


def header(data, limits=LIMITS, rules=RULES):
    return read_header(data, limits, rules)


@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'WEBP', 'GIF', 'BMP', 'TIFF', 'PPM',
                                         'JPEG2000'])
def test_size_and_format(file_format):
    found = header(encoded(picture(37, 21), file_format))
    assert (found.width, found.height, found.format) == (37, 21, file_format)
    assert not found.animated and not found.transparent


@pytest.mark.parametrize('size', [(1, 1), (1, 10_000), (10_000, 1)])
def test_extreme_shapes_within_the_limits_are_fine(size):
    found = header(encoded(picture(*size), 'PNG'))
    assert (found.width, found.height) == size


@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_exif_6_turns_the_size_unless_upstream_is_reproduced(file_format):
    data = encoded(picture(40, 30), file_format, orientation=6)
    found = header(data)
    assert (found.width, found.height) == (30, 40)
    if file_format != 'TIFF':  # whose orientation Pillow applies itself, upstream too
        found = header(data, rules=PixelRules(upstream=True))
        assert (found.width, found.height, found.orientation) == (40, 30, 1)


def test_exif_behind_the_pixels_of_a_png_is_found():
    exif = Image.Exif()
    exif[274] = 8
    data = encoded(picture(40, 30), 'PNG')
    end = data.index(b'IEND') - 4
    data = data[:end] + png_chunk(b'eXIf', exif.tobytes()[6:]) + data[end:]
    found = header(data)
    assert (found.width, found.height, found.orientation) == (30, 40, 8)


@pytest.mark.parametrize('value', [0, 9, 700])
def test_an_orientation_that_does_not_exist_is_none(value):
    assert header(jpeg(40, 30, orientation=value)).orientation == 1


@pytest.mark.filterwarnings('ignore:Corrupt EXIF data:UserWarning')
def test_metadata_that_cannot_be_read_does_not_spoil_the_image():
    data = encoded(picture(40, 30), 'JPEG', exif=b'Exif\x00\x00II*\x00' + b'\xff' * 40)
    assert header(data).orientation == 1


@pytest.mark.parametrize('file_format', ['GIF', 'WEBP', 'PNG'])
def test_animations_are_recognised(file_format):
    assert header(animated(file_format)).animated


@pytest.mark.parametrize('mode, options', [('RGBA', {}), ('LA', {}), ('P', {'transparency': 0}),
                                           ('1', {'transparency': 0}),
                                           ('RGB', {'transparency': (1, 2, 3)})])
def test_transparency_is_recognised(mode, options):
    image = Image.fromarray(picture(8, 8)).convert(mode)
    assert header(encoded(image, 'PNG', **options)).transparent


@pytest.mark.parametrize('data', [b'', b'\x00', HTML, SVG, PDF, b'plain words, no picture at all',
                                  bytes(5000)])
def test_what_is_no_image_is_named_so_and_not_quoted(data):
    with pytest.raises(NotAnImage, match='expected JPEG, PNG') as caught:
        header(data)
    message = str(caught.value)
    assert '\n' not in message
    assert 'html' not in message and 'words' not in message


@pytest.mark.parametrize('data', [jpeg(640, 480)[:200], jpeg(640, 480)[:3],
                                  encoded(picture(9, 9), 'PNG')[:20],
                                  encoded(picture(9, 9), 'WEBP')[:24],
                                  encoded(picture(9, 9), 'GIF')[:9], b'BM' + bytes(30)])
def test_an_image_that_ends_within_its_header_is_damaged(data):
    with pytest.raises(DamagedImage, match='header .* cannot be read .* send it again'):
        header(data)


def test_too_many_pixels_and_too_long_sides():
    with pytest.raises(ImageTooLarge, match='30000x30000 pixels; expected 89478485 at most; .*'
                                            'LMDEPLOY_EXT_IMAGE_MAX_PIXELS'):
        header(png_bomb())
    with pytest.raises(ImageTooLarge, match='40000x1 pixels; expected 32768 a side at most; .*'
                                            'LMDEPLOY_EXT_IMAGE_MAX_SIDE'):
        header(png_bomb(40_000, 1))
    raised = ImageLimits(max_pixels=10 ** 9)
    assert header(png_bomb(), raised).width == 30_000


def test_a_gif_screen_of_four_gigapixels_is_refused():
    data = bytearray(encoded(picture(9, 9), 'GIF'))
    data[6:10] = struct.pack('<HH', 65_535, 65_535)
    with pytest.raises(ImageTooLarge, match='65535x65535'):
        header(bytes(data))


def test_a_gif_of_endless_comments_is_refused_at_once():
    """Pillow would join their pieces for minutes."""
    data = encoded(Image.fromarray(picture(40, 30)).convert('P'), 'GIF')
    table = data.index(b',')
    many, long = 500_000 * b'\x21\xfe\0', b'\x21\xfe' + 20_000 * (b'\xff' + 255 * b'c') + b'\0'
    start = time.monotonic()
    for comments in (many, long):
        for file in (data[:table] + comments + data[table:], data[:-1] + comments + data[-1:],
                     data[:-1] + comments):
            with pytest.raises(UnreadableImage, match='comments of more than 4096 pieces'):
                header(file)
    assert time.monotonic() - start < 5


def test_a_jpeg_of_endless_exif_data_is_refused_at_once():
    """Likewise."""
    data = jpeg(40, 30)
    piece = b'\xff\xe1\0\x10Exif\0\0MM\0*\0\0\0\x08'
    start = time.monotonic()
    with pytest.raises(UnreadableImage, match='200000 pieces of EXIF data'):
        header(data[:2] + 200_000 * piece + data[2:])
    assert time.monotonic() - start < 1


def test_a_gif_with_comments_and_frames_is_read():
    data = encoded(Image.fromarray(picture(40, 30)).convert('P'), 'GIF', comment=b'c' * 9000)
    assert header(data).width == 40
    assert header(animated('GIF')).animated
