"""What engines are given: the bytes as they came, checked as far as the engine needs it."""
import io

import numpy as np
import pytest
from PIL import Image, ImageFile

from lmdeploy_ext.classify.decode import Needs, open_picture
from lmdeploy_ext.vl.image_errors import DamagedImage, ImageTooLarge, NotAnImage
from lmdeploy_ext.vl.image_limits import ImageLimits
from tests.vl.image_files import HTML, cut, encoded, jpeg, picture, png_bomb

LIMITS = ImageLimits()


@pytest.mark.parametrize('needs', list(Needs))
@pytest.mark.parametrize('format_', ['JPEG', 'PNG', 'WEBP', 'GIF', 'BMP', 'TIFF'])
def test_bytes_stay_as_they_came(format_, needs):
    data = encoded(picture(64, 48), format_)
    opened = open_picture(data, needs, LIMITS)
    assert opened.data == data and opened.media_type == f'image/{format_.lower()}'
    assert (opened.rgb is not None) == (needs is Needs.PIXELS)


@pytest.mark.parametrize('data', [
    encoded(picture(64, 48, channels=4), 'PNG'),
    jpeg(64, 48, orientation=6),
], ids=['alpha', 'rotated'])
def test_pixels_are_those_of_stock_lmdeploy(data):
    expected = Image.open(io.BytesIO(data)).convert('RGB')
    assert np.array_equal(open_picture(data, Needs.PIXELS, LIMITS).rgb, expected)


@pytest.mark.parametrize('needs', [Needs.CHECKED, Needs.PIXELS])
@pytest.mark.parametrize('format_', ['JPEG', 'PNG', 'WEBP', 'GIF'])
def test_a_truncated_file_is_an_error_also_where_lmdeploy_has_loaded_one(format_, needs,
                                                                         monkeypatch):
    """LMDeploy's own `load_image` makes Pillow tolerate truncated files, process-wide."""
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
    with pytest.raises(DamagedImage):
        open_picture(cut(encoded(picture(64, 48), format_)), needs, LIMITS)


@pytest.mark.parametrize('needs', list(Needs))
def test_what_is_no_image_or_too_large_is_an_error_for_every_engine(needs):
    with pytest.raises(NotAnImage):
        open_picture(HTML, needs, LIMITS)
    with pytest.raises(ImageTooLarge):
        open_picture(png_bomb(), needs, LIMITS)
    with pytest.raises(ImageTooLarge, match='64x48 pixels; expected 3000 at most'):
        open_picture(encoded(picture(64, 48), 'PNG'), needs, ImageLimits(max_pixels=3000))
