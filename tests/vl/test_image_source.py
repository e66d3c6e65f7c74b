"""Every way to name an image, and every way to name it wrongly."""
import base64
import io
import os
import pathlib
import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from lmdeploy_ext.vl.image_errors import (AddressRefused, BadImageReference, DamagedImage,
                                          ImageNotFetched, ImageTooLarge, NotAnImage,
                                          UnreadableImage)
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_rules import PixelRules
from lmdeploy_ext.vl.image_source import is_remote, read

from .image_files import cut, data_url, encoded, jpeg, picture, pillow_rgb
from .image_server import content, serving

LIMITS = ImageLimits()
DATA = jpeg(40, 30)
SMALL = ImageLimits(max_bytes=len(DATA) - 1)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / 'a picture #1.jpg'
    file.write_bytes(DATA)
    return file


def test_files(path):
    for reference in (str(path), path, path.as_uri(), f'file://localhost{path.as_uri()[7:]}'):
        assert read(reference, LIMITS) == DATA


@pytest.mark.parametrize('kind', [bytes, bytearray, memoryview])
def test_bytes(kind):
    found = read(kind(DATA), LIMITS)
    assert type(found) is bytes and found == DATA


def test_urls():
    with serving({'/image.jpg': content(DATA)}) as server:
        assert read(server.url('/image.jpg'), ImageLimits(private_addresses=True)) == DATA
        with pytest.raises(AddressRefused):
            read(server.url('/image.jpg').replace('http', 'HTTP'), LIMITS)


@pytest.mark.parametrize('reference, remote', [
    ('http://a/b', True), ('HTTPS://a/b', True), ('data:,', False), ('/a/http://b', False),
    ('httpd.jpg', False), (b'http://a/b', False), (pathlib.Path('a'), False)])
def test_what_needs_the_network(reference, remote):
    assert is_remote(reference) is remote


TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize('url', [
    data_url(DATA), f'DATA:image/JPEG;BASE64,{TEXT}', f'data:;base64,{TEXT}',
    f'data:image/jpeg;charset=utf-8;name="a.jpg" ; base64,{TEXT}',
    'data:image/jpeg;base64,' + base64.urlsafe_b64encode(DATA).decode(),
    f'data:image/jpeg;base64,{TEXT.rstrip("=")}',
    'data:image/jpeg;base64,' + base64.encodebytes(DATA).decode(),
    'data:image/jpeg;base64,' + base64.encodebytes(DATA).decode().replace('\n', '\r\n\t '),
    'data:image/jpeg;base64,' + TEXT.replace('+', '%2B').replace('/', '%2f').replace('=', '%3D'),
    'data:image/jpeg,' + ''.join(f'%{byte:02X}' for byte in DATA)])
def test_data_urls(url):
    assert read(url, LIMITS) == DATA


@pytest.mark.parametrize('url, problem', [
    (f'data:image/jpeg;base64{TEXT}', 'without a comma'), ('data:', 'without a comma'),
    (f'data:image/jpeg;base64,@{TEXT}', 'not base64'),
    ('data:image/jpeg;base64,abcde', 'not base64'),
    ('data:image/jpeg;base64,ab=cdefg', 'not base64'),
    ('data:image/jpeg;base64,abcdé', 'beyond ASCII')])
def test_malformed_data_urls(url, problem):
    with pytest.raises(BadImageReference, match=f'{problem}.*; expected .*; (correct|enc)') as at:
        read(url, LIMITS)
    assert len(str(at.value)) < 200 and TEXT[:20] not in str(at.value)


@pytest.mark.parametrize('url', [data_url(DATA), 'data:,' + 'x' * len(DATA),
                                 data_url(bytes(10 * len(DATA)))])
def test_a_data_url_over_the_limit(url):
    with pytest.raises(ImageTooLarge, match=f'expected {SMALL.max_bytes} at most; .*'
                                            'LMDEPLOY_EXT_IMAGE_MAX_BYTES'):
        read(url, SMALL)


def test_a_data_url_at_the_limit():
    assert read(data_url(DATA), ImageLimits(max_bytes=len(DATA))) == DATA


def test_files_and_bytes_over_the_limit(path):
    for reference in (str(path), DATA):
        with pytest.raises(ImageTooLarge, match=f'{len(DATA)} bytes; expected'):
            read(reference, SMALL)


@pytest.mark.parametrize('reference, problem', [
    ('/no/such/file.jpg', 'No such file or directory'), ('', 'No such file or directory'),
    ('/', 'Is a directory'), ('/dev/zero', 'a device or a pipe'), ('a\0b', 'is no path'),
    ('x' * 5000, 'File name too long'), ('s3://bucket/a.jpg', 'begins with s3://'),
    ('file://elsewhere/a.jpg', 'of another host'), ('file://[a', 'malformed file URL'),
    (3, 'type int'), (None, 'type NoneType'), (['/a.jpg'], 'type list')])
def test_references_that_lead_nowhere(reference, problem):
    with pytest.raises(BadImageReference, match=f'{problem}.*expected') as caught:
        read(reference, LIMITS)
    assert '\n' not in str(caught.value) and len(str(caught.value)) < 400


def test_a_file_that_may_not_be_read(path, monkeypatch):
    def forbidden(*args):
        raise PermissionError(13, 'Permission denied')
    monkeypatch.setattr(os, 'open', forbidden)
    with pytest.raises(BadImageReference, match='Permission denied'):
        read(str(path), LIMITS)


@pytest.mark.timeout(5)
def test_a_file_whose_reading_fails():
    with pytest.raises(BadImageReference, match='Input/output error'):
        read('/proc/self/mem', LIMITS)


def test_a_file_that_does_not_know_its_size():
    assert read('/proc/self/status', LIMITS).startswith(b'Name:')


@pytest.mark.parametrize('limit', [10**15, 10**30])
def test_a_limit_as_good_as_none_takes_no_memory(path, limit):
    assert read(path, ImageLimits(max_bytes=limit)) == read(path, LIMITS)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(BadImageReference, match='a device or a pipe'):
        read(tmp_path / 'pipe', LIMITS)


def test_arrays():
    pixels = picture(40, 30)
    assert read(pixels, LIMITS) is pixels
    flipped = pixels[::-1]
    found = read(flipped, LIMITS)
    assert found.flags['C_CONTIGUOUS']
    np.testing.assert_array_equal(found, flipped)
    grey = pixels[..., 0]
    for reference in (grey, grey[..., np.newaxis]):
        np.testing.assert_array_equal(read(reference, LIMITS), np.stack([grey] * 3, axis=2))


def test_an_array_with_alpha_is_shown_on_white():
    pixels = picture(40, 30, channels=4)
    paper = Image.new('RGBA', (40, 30), 'white')
    paper.alpha_composite(Image.fromarray(pixels))
    np.testing.assert_array_equal(read(pixels, LIMITS), np.asarray(paper)[..., :3])
    upstream = PixelRules(upstream=True)
    np.testing.assert_array_equal(read(pixels, LIMITS, upstream), pixels[..., :3])


@pytest.mark.parametrize('array', [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 2), np.uint8),
                                   np.zeros((2, 4, 4, 3), np.uint8), np.zeros(4, np.uint8),
                                   np.zeros((3, 9, 9), np.uint8), np.zeros((0, 4, 3), np.uint8),
                                   np.zeros((4, 0), np.uint8), np.zeros((4, 4), np.uint16)])
def test_arrays_that_are_no_picture(array):
    with pytest.raises(BadImageReference, match='found .* expected .*; (convert|leave)'):
        read(array, LIMITS)


def test_arrays_and_pil_images_over_the_limits():
    few = ImageLimits(max_pixels=40 * 30 - 1)
    short = ImageLimits(max_side=39)
    for reference in (picture(40, 30), Image.new('RGB', (40, 30))):
        for limits in (few, short):
            with pytest.raises(ImageTooLarge, match='40x30 pixels; expected'):
                read(reference, limits)


@pytest.mark.parametrize('mode', ['RGB', 'L', '1', 'P', 'CMYK', 'YCbCr', 'HSV'])
def test_pil_images(mode):
    image = Image.fromarray(picture(40, 30)).convert(mode)
    np.testing.assert_array_equal(read(image, LIMITS), np.asarray(image.convert('RGB')))


def test_a_pil_image_with_alpha_is_shown_on_white():
    image = Image.fromarray(picture(40, 30, channels=4))
    paper = Image.new('RGBA', image.size, 'white')
    paper.alpha_composite(image)
    np.testing.assert_array_equal(read(image, LIMITS), np.asarray(paper)[..., :3])
    np.testing.assert_array_equal(read(image, LIMITS, PixelRules(upstream=True)),
                                  np.asarray(image.convert('RGB')))


def test_pil_images_that_pillow_does_not_convert():
    greys = Image.new('L', (4, 3))
    for image in (Image.new('LA', (4, 3)).convert('La'), greys):
        greys.info['transparency'] = None
        with pytest.raises(UnreadableImage, match='convert it to 8-bit RGB'):
            read(image, LIMITS)


def test_a_pil_image_as_opened_is_oriented_like_its_file():
    data = jpeg(40, 30, orientation=6)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
        assert expected.shape == (40, 30, 3)
        np.testing.assert_array_equal(read(image, LIMITS), expected)
        np.testing.assert_array_equal(read(image, LIMITS, PixelRules(upstream=True)),
                                      pillow_rgb(data))
        # turned by its owner already: Pillow leaves the file's EXIF on the copy
        turned = image.rotate(-90, expand=True)
        np.testing.assert_array_equal(read(turned, LIMITS), expected)


def test_a_pil_image_of_a_cut_off_file_is_damaged():
    with Image.open(io.BytesIO(cut(jpeg(320, 240)))) as image:
        with pytest.raises(DamagedImage, match='JPEG is damaged or cut off; .*320x240'):
            read(image, LIMITS)


@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'GIF', 'TIFF'])
def test_a_pil_image_that_was_closed_too_early(tmp_path, file_format):
    (tmp_path / 'image').write_bytes(encoded(picture(40, 30), file_format))
    with Image.open(tmp_path / 'image') as image:
        pass
    with pytest.raises(BadImageReference, match=r'closed before .*; call its load\(\)'):
        read(image, LIMITS)
    with Image.open(tmp_path / 'image') as image:
        image.load()
    assert read(image, LIMITS).shape == (30, 40, 3)


def test_one_pil_image_in_many_requests_is_loaded_once():
    data = encoded(picture(300, 200), 'PNG')
    found = []
    with Image.open(io.BytesIO(data)) as image:
        threads = [threading.Thread(target=lambda: found.append(read(image, LIMITS)))
                   for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    for pixels in found:
        np.testing.assert_array_equal(pixels, picture(300, 200))


def test_every_kind_of_error_is_an_unreadable_image():
    for kind in (NotAnImage, DamagedImage, ImageTooLarge, BadImageReference, ImageNotFetched):
        assert issubclass(kind, UnreadableImage)
    assert issubclass(AddressRefused, ImageNotFetched)
    assert issubclass(UnreadableImage, ValueError)
