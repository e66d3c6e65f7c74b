"""The right pixels of every kind of file, and an error for every file that lacks some."""
import io
import sys
import time
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from lmdeploy_ext.vl.image_decode import PixelRules, decode
from lmdeploy_ext.vl.image_errors import DamagedImage, UnreadableImage
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_pillow import strict_decoding

from .image_files import animated, cut, encoded, jpeg, picture, pillow_rgb, png_bomb, png_chunk

# Pillow's, about the metadata of damaged files
pytestmark = pytest.mark.filterwarnings(
    'ignore:(Corrupt EXIF data|Truncated File Read):UserWarning')

LIMITS = ImageLimits()
RIGHT, UPSTREAM = PixelRules(), PixelRules(upstream=True)
OPAQUE = [('JPEG', 'RGB', {}), ('JPEG', 'RGB', {'progressive': True}), ('JPEG', 'L', {}),
          ('JPEG', 'RGB', {'subsampling': '4:4:4'}), ('JPEG', 'CMYK', {}),
          ('JPEG', 'RGB', {'subsampling': '4:2:2'}), ('JPEG', 'RGB', {'keep_rgb': True}),
          ('PNG', 'RGB', {}), ('PNG', 'P', {'bits': 2}), ('PNG', 'P', {'bits': 4}),
          ('PNG', 'L', {}), ('PNG', 'P', {}), ('PNG', '1', {}), ('WEBP', 'RGB', {}),
          ('WEBP', 'RGB', {'lossless': True}), ('GIF', 'P', {}), ('BMP', 'RGB', {}),
          ('BMP', 'P', {}), ('TIFF', 'RGB', {}), ('TIFF', 'CMYK', {}), ('TIFF', 'L', {}),
          ('TIFF', 'RGB', {'compression': 'tiff_lzw'}), ('PPM', 'RGB', {}),
          ('JPEG2000', 'RGB', {})]


def pixels(data, rules=RIGHT, at_least=None):
    return decode(data, read_header(data, LIMITS, rules), rules, at_least)


def on_white(image):
    """The expected picture of a transparent image."""
    paper = Image.new('RGBA', image.size, 'white')
    paper.alpha_composite(image.convert('RGBA'))
    return np.asarray(paper.convert('RGB'))


@pytest.mark.parametrize('rules', [RIGHT, UPSTREAM])
@pytest.mark.parametrize('file_format, mode, options', OPAQUE)
def test_opaque_8_bit_files_equal_pillow_bit_for_bit(file_format, mode, options, rules):
    image = Image.fromarray(picture(201, 133)).convert(mode)
    data = encoded(image, file_format, **options)
    found = pixels(data, rules)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pillow_rgb(data))


def test_a_ycck_jpeg_equals_pillow():
    data = bytearray(encoded(Image.fromarray(picture(64, 48)).convert('CMYK'), 'JPEG'))
    transform = data.index(b'Adobe') + 11
    assert data[transform] in (0, 2)
    data[transform] = 2
    np.testing.assert_array_equal(pixels(bytes(data)), pillow_rgb(bytes(data)))


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_orientation_is_applied_as_pillow_transposes(file_format, orientation):
    data = encoded(picture(40, 24), file_format, orientation)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert('RGB'))
    np.testing.assert_array_equal(pixels(data), expected)


@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_upstream_rules_take_the_orientation_that_pillow_takes(file_format):
    data = encoded(picture(40, 24), file_format, 6)
    np.testing.assert_array_equal(pixels(data, UPSTREAM), pillow_rgb(data))


@pytest.mark.parametrize('file_format', ['PNG', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('mode', ['RGBA', 'LA'])
def test_alpha_is_shown_on_white(file_format, mode):
    image = Image.fromarray(picture(61, 47, channels=4)).convert(mode)
    data = encoded(image, file_format, **({'lossless': True} if file_format == 'WEBP' else {}))
    with Image.open(io.BytesIO(data)) as stored:
        expected = on_white(stored)
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(pixels(data, UPSTREAM), pillow_rgb(data))


@pytest.mark.parametrize('mode', ['P', 'L', 'RGB', '1'])
def test_a_transparent_colour_is_shown_on_white(mode):
    source = picture(40, 30)
    source[:10] = (51, 0, 0)
    image = Image.fromarray(source).convert(mode)
    data = encoded(image, 'PNG', transparency=image.getpixel((0, 0)))
    with Image.open(io.BytesIO(data)) as stored:
        expected = on_white(stored)
    assert (expected[0] == 255).any()
    np.testing.assert_array_equal(pixels(data), expected)
    np.testing.assert_array_equal(pixels(data, UPSTREAM), pillow_rgb(data))


def test_a_half_transparent_palette_is_blended_with_white():
    image = Image.fromarray(picture(40, 30)).convert('P')
    data = encoded(image, 'PNG', transparency=bytes(range(256)))
    with Image.open(io.BytesIO(data)) as stored:
        np.testing.assert_array_equal(pixels(data), on_white(stored))


@pytest.mark.parametrize('file_format', ['PNG', 'TIFF', 'PPM', 'JPEG2000'])
def test_16_bit_greys_are_scaled_not_clipped(file_format):
    greys = np.linspace(0, 65_535, 48 * 32).reshape(32, 48).astype(np.uint16)
    data = encoded(Image.fromarray(greys), file_format)
    found = pixels(data)
    assert found.shape == (32, 48, 3)
    np.testing.assert_array_equal(found, np.repeat((greys >> 8)[..., np.newaxis], 3, axis=2))
    np.testing.assert_array_equal(pixels(data, UPSTREAM), pillow_rgb(data))


def test_big_endian_16_bit_tiff():
    greys = np.linspace(0, 65_535, 48 * 32).reshape(32, 48).astype('>u2')
    data = encoded(Image.frombytes('I;16B', (48, 32), greys.tobytes()), 'TIFF')
    np.testing.assert_array_equal(pixels(data)[..., 0], greys >> 8)


def test_16_bit_colours_are_scaled():
    colours = np.random.default_rng(0).integers(0, 1 << 16, (32, 48, 3), np.uint16)
    written, data = cv2.imencode('.png', colours)
    assert written
    np.testing.assert_array_equal(pixels(data.tobytes()), (colours >> 8)[..., ::-1])


def test_a_transparent_16_bit_grey_is_white():
    greys = np.full((8, 8), 5_000, np.uint16)
    greys[0, 0] = 300
    data = encoded(Image.fromarray(greys), 'PNG')
    at = data.index(b'IDAT') - 4
    data = data[:at] + png_chunk(b'tRNS', (300).to_bytes(2, 'big')) + data[at:]
    found = pixels(data)
    assert found[0, 0].tolist() == [255] * 3
    assert found[1, 1].tolist() == [5_000 >> 8] * 3


def test_floating_point_pixels_are_refused_with_what_to_do():
    data = encoded(Image.fromarray(np.ones((8, 8), np.float32)), 'TIFF')
    with pytest.raises(UnreadableImage, match='mode F; expected 8 or 16 bits .* convert it'):
        pixels(data)


@pytest.mark.parametrize('file_format', ['GIF', 'WEBP', 'PNG'])
def test_an_animation_is_its_first_frame(file_format):
    data = animated(file_format)
    np.testing.assert_array_equal(pixels(data), pillow_rgb(data))


@pytest.mark.parametrize('needed, factor', [((800, 600), 1), ((401, 300), 1), ((400, 300), 2),
                                            ((201, 1), 2), ((200, 150), 4), ((100, 75), 8),
                                            ((1, 1), 8), ((900, 1), 1)])
def test_a_jpeg_comes_as_small_as_is_large_enough(needed, factor):
    found = pixels(jpeg(800, 600), at_least=needed)
    assert found.shape == (600 // factor, 800 // factor, 3)


def test_scaled_sides_are_rounded_up():
    assert pixels(jpeg(801, 599), at_least=(101, 75)).shape == (75, 101, 3)
    assert pixels(jpeg(801, 599), at_least=(101, 76)).shape == (150, 201, 3)


@pytest.mark.parametrize('orientation', [1, 6, 3])
def test_scaled_decoding_shows_the_same_picture(orientation):
    data = jpeg(800, 600, orientation)
    full = pixels(data)
    for factor in (2, 4, 8):
        width, height = full.shape[1] // factor, full.shape[0] // factor
        found = pixels(data, at_least=(width, height))
        assert found.shape == (height, width, 3)
        expected = cv2.resize(full, (width, height), interpolation=cv2.INTER_AREA)
        assert np.abs(found.astype(int) - expected).mean() < 2


def test_axes_are_swapped_for_scaling_where_the_orientation_swaps_them():
    # stored 800x100, shown 100x800: 1/4 would leave 200 rows of the 300 that are needed
    assert pixels(jpeg(800, 100, orientation=6), at_least=(10, 300)).shape == (400, 50, 3)


def test_upstream_rules_never_scale():
    assert pixels(jpeg(800, 600), UPSTREAM, at_least=(10, 10)).shape == (600, 800, 3)


CUT_OFF = {'baseline JPEG': jpeg(320, 240), 'progressive JPEG': jpeg(320, 240, progressive=True),
           'CMYK JPEG': encoded(Image.fromarray(picture(320, 240)).convert('CMYK'), 'JPEG'),
           'restarting JPEG': jpeg(320, 240, restart_marker_rows=2),
           'PNG': encoded(picture(64, 64), 'PNG'), 'WebP': encoded(picture(320, 240), 'WEBP'),
           'RGBA PNG': encoded(picture(64, 64, channels=4), 'PNG'),
           'JPEG 2000': encoded(picture(64, 64), 'JPEG2000'),
           'GIF': encoded(picture(64, 64), 'GIF'), 'BMP': encoded(picture(64, 64), 'BMP'),
           'TIFF': encoded(picture(64, 64), 'TIFF', compression='tiff_lzw'),
           'animated WebP': animated('WEBP'), 'animated GIF': animated('GIF')}


@pytest.mark.parametrize('rules', [RIGHT, UPSTREAM])
# of an animation, the first frame may be whole
@pytest.mark.parametrize('kind', [kind for kind in CUT_OFF if not kind.startswith('animated')])
def test_a_file_cut_at_60_percent_is_damaged(kind, rules):
    with pytest.raises(UnreadableImage, match='expected .*; send it again'):
        pixels(cut(CUT_OFF[kind]), rules)


def test_a_cut_off_file_is_damaged_whatever_upstream_set(monkeypatch):
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
    for kind in ('baseline JPEG', 'RGBA PNG', 'GIF', 'TIFF'):
        with pytest.raises(DamagedImage):
            pixels(cut(CUT_OFF[kind]))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_upstream_cannot_set_the_flag_while_an_image_is_decoded(monkeypatch):
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', False)
    loader = SimpleNamespace(ImageFile=ImageFile)
    monkeypatch.setitem(sys.modules, 'lmdeploy.vl.utils', loader)
    with strict_decoding:
        with strict_decoding:
            pass
        loader.ImageFile.LOAD_TRUNCATED_IMAGES = True  # what its load_image does
        assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert loader.ImageFile is ImageFile
    loader.ImageFile.LOAD_TRUNCATED_IMAGES = True
    with strict_decoding:
        assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'restart_marker_rows': 1}])
def test_a_jpeg_without_its_end_marker_is_accepted(options):
    data = jpeg(320, 240, **options)
    for missing in (1, 2):
        np.testing.assert_array_equal(pixels(data[:-missing]), pillow_rgb(data))


def test_a_jpeg_with_something_behind_it_is_accepted():
    data = jpeg(320, 240)
    np.testing.assert_array_equal(pixels(data + b'something' * 30), pillow_rgb(data))
    np.testing.assert_array_equal(pixels(data + b'\n'), pillow_rgb(data))


def test_a_progressive_jpeg_that_ends_between_two_scans_is_damaged():
    data = jpeg(320, 240, progressive=True)
    scan = data.rindex(b'\xff\xda')
    tables = data.rindex(b'\xff\xc4', 0, scan)
    for end in (scan, tables):
        with pytest.raises(DamagedImage, match='cut off'):
            pixels(data[:end])


def test_a_jpeg_of_thousands_of_scans_is_refused_at_once():
    """Each takes a few bytes, and as long as the whole picture to decode."""
    data = encoded(np.full((2000, 2000, 3), 99, np.uint8), 'JPEG', progressive=True)
    scan = data[data.rindex(b'\xff\xda'):-2]
    start = time.monotonic()
    comment = b'\xff\xfe\x00\x04\xff\xd9'
    for more in (scan, comment + scan, comment, comment * 20 + scan):
        for tail in (b'\xff\xd9', b''):
            with pytest.raises(UnreadableImage, match='more than 100 scans'):
                pixels(data[:-2] + 2000 * (more + scan) + tail)
    assert time.monotonic() - start < 2


def test_a_film_behind_a_jpeg_is_not_looked_at():
    data = jpeg(40, 30)
    np.testing.assert_array_equal(pixels(data + 1000 * b'film \xff\xda\x00\x08'),
                                  pillow_rgb(data))


def test_a_jpeg_that_ends_before_a_restart_marker_is_damaged():
    data = jpeg(320, 240, restart_marker_rows=2)
    for number in range(7):
        with pytest.raises(DamagedImage, match='cut off'):
            pixels(data[:data.index(bytes([0xFF, 0xD0 + number]))])


def test_the_end_marker_of_a_thumbnail_does_not_count():
    thumbnail = jpeg(64, 48)
    data = encoded(picture(320, 240), 'JPEG', exif=b'Exif\x00\x00' + thumbnail)
    with pytest.raises(DamagedImage):
        pixels(cut(data))


@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'L'])
def test_a_png_with_a_wrong_checksum_is_damaged(mode):
    data = bytearray(encoded(Image.fromarray(picture(64, 64)).convert(mode), 'PNG'))
    data[data.index(b'IEND') - 5] ^= 1
    with pytest.raises(DamagedImage, match='wrong checksum'):
        pixels(bytes(data))


def test_a_png_whose_pixels_are_too_few_is_damaged():
    with pytest.raises(DamagedImage):
        pixels(png_bomb(8_000, 1_000))


def test_odd_metadata_of_a_png_leaves_no_line_in_the_log(capfd):
    data = encoded(picture(64, 64), 'PNG')
    at = data.index(b'IDAT') - 4
    odd = png_chunk(b'iCCP', b'odd\x00\x00not a compressed profile')
    np.testing.assert_array_equal(pixels(data[:at] + odd + data[at:]), pillow_rgb(data))
    assert capfd.readouterr().err == ''


EXACT = {kind: pillow_rgb(data) for kind, data in CUT_OFF.items() if kind != 'RGBA PNG'}


@pytest.mark.parametrize('kind', EXACT)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_file_cut_anywhere_is_damaged_or_whole(kind, data):
    file = CUT_OFF[kind]
    near_the_end = st.integers(len(file) - 40, len(file))
    length = data.draw(st.integers(0, len(file)) | near_the_end)
    try:
        found = pixels(file[:length])
    except UnreadableImage:
        assert length < len(file)
    else:
        np.testing.assert_array_equal(found, EXACT[kind])


@pytest.mark.parametrize('kind', CUT_OFF)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_a_file_with_a_wrong_byte_decodes_to_its_size_or_is_unreadable(kind, data):
    file = bytearray(CUT_OFF[kind])
    file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = read_header(bytes(file), LIMITS, RIGHT)
        found = decode(bytes(file), header, RIGHT)
    except UnreadableImage:
        return
    assert found.shape == (header.height, header.width, 3)
