"""LMDeploy's functions for images: right pixels or the reason, never a black stand-in."""
import base64
import io

import numpy as np
import pytest
from lmdeploy.vl import load_image, utils
from PIL import Image, ImageFile

from lmdeploy_ext.vl.image_errors import DamagedImage, UnreadableImage
from tests.vl.image_files import HTML, cut, data_url, encoded, jpeg, picture


def test_names_that_others_copied_are_patched_too():
    assert load_image is utils.load_image and load_image.__wrapped__ is not load_image


def test_stock_answers_what_it_cannot_read_with_black(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', False)  # it leaves that set
    black = load_image.__wrapped__(str(tmp_path / 'nowhere.jpg'))
    assert black.size == (32, 32) and not np.asarray(black).any()


@pytest.mark.parametrize('content', [b'', HTML, cut(jpeg(64, 48)), jpeg(64, 48)[:200]])
def test_what_cannot_be_read_is_an_error(tmp_path, content):
    path = tmp_path / 'bad.jpg'
    path.write_bytes(content)
    for reference in (str(path), data_url(content)):
        with pytest.raises(UnreadableImage):
            load_image(reference)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_pixels_are_right():
    upright = picture(40, 30)
    lying = encoded(np.rot90(upright), 'PNG', orientation=6)
    loaded = load_image(data_url(lying, 'image/png'))
    assert loaded.mode == 'RGB' and np.array_equal(loaded, upright)
    clear = Image.new('RGBA', (4, 4), (255, 0, 0, 0))
    assert np.asarray(load_image(clear)).min() == 255, 'transparent is white, not red'


def test_the_setting_gives_upstreams_pixels(monkeypatch):
    monkeypatch.setenv('LMDEPLOY_EXT_PIXELS', 'upstream')
    clear = Image.new('RGBA', (4, 4), (255, 0, 0, 0))
    assert np.asarray(load_image(clear)).tolist()[0][0] == [255, 0, 0]
    data = jpeg(64, 48, orientation=6)
    assert np.array_equal(load_image(data_url(data)), Image.open(io.BytesIO(data)))


def test_a_client_sends_the_file_as_it_is_or_learns_why_not(tmp_path):
    path = tmp_path / 'a.jpg'
    path.write_bytes(jpeg(64, 48))
    assert base64.b64decode(utils.encode_image_base64(str(path))) == path.read_bytes()
    image = Image.fromarray(picture(9, 7))
    sent = base64.b64decode(utils.encode_image_base64(image))
    assert np.array_equal(Image.open(io.BytesIO(sent)), image)
    path.write_bytes(jpeg(64, 48)[:200])
    with pytest.raises(DamagedImage):
        utils.encode_image_base64(str(path))
    with pytest.raises(UnreadableImage):
        utils.encode_image_base64(str(tmp_path / 'nowhere.jpg'))
