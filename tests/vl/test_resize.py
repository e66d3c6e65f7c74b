"""Each axis by its own rule, and close to what upstream's resize gives."""
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lmdeploy_ext.vl.resize import resize, resize_as_upstream
from tests.vl.photographs import photograph, psnr


@pytest.mark.parametrize('size', [
    (1792, 1344),  # both grow
    (448, 448),  # both shrink
    (590, 447),  # both shrink a little
    (448, 896),  # one of each
    (896, 200),
    (612, 896),  # one stays
    (300, 464),
])
def test_close_to_pillows_bicubic(size):
    image = photograph(612, 464)
    assert psnr(resize(image, *size), resize_as_upstream(image, *size)) >= 40


def test_fine_patterns_average_out_where_an_axis_shrinks():
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255
    for width, height in ((100, 100), (100, 400), (100, 800)):
        small = resize(stripes, width, height)
        assert small.shape == (height, width, 3)
        assert abs(small.astype(int) - 128).max() <= 1
    assert resize(stripes.transpose(1, 0, 2), 800, 100).std() < 1


def test_an_axis_that_grows_is_smooth_while_the_other_shrinks():
    ramp = np.repeat(np.arange(0, 250, 25, dtype=np.uint8)[None, :, None], 600, axis=0)
    image = np.repeat(ramp, 3, axis=2)  # [600, 10, 3]
    grown = resize(image, 100, 60).astype(int)
    assert np.diff(grown[30, 10:-10, 0]).max() <= 4  # no steps of 25, as area makes them


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_a_plain_image_stays_plain(width, height, new_width, new_height):
    image = np.full((height, width, 3), (10, 128, 250), np.uint8)
    resized = resize(image, new_width, new_height)
    assert resized.shape == (new_height, new_width, 3)
    assert (resized == (10, 128, 250)).all()


@pytest.mark.parametrize('size, new', [((1, 10000), (448, 448)), ((10000, 1), (5376, 448)),
                                       ((1, 1), (1792, 1344)), ((40000, 3), (5376, 1)),
                                       ((3, 40000), (3, 40001)), ((100000, 2), (448, 40000))])
def test_extreme_sizes(size, new):
    image = np.full((size[1], size[0], 3), 77, np.uint8)
    image[:size[1] // 2] = 99
    resized = resize(image, *new)
    assert resized.shape == (new[1], new[0], 3)
    assert 74 <= resized.min() and resized.max() <= 102  # cubic overshoots an edge by a tenth


@pytest.mark.parametrize('size', [(900, 700), (300, 200), (590, 447), (612, 464), (300, 700)])
def test_writing_into_a_part_of_a_larger_array(size):
    image = photograph(612, 464)
    canvas = np.zeros((800, 1000, 3), np.uint8)
    part = canvas[50:50 + size[1], 40:40 + size[0]]
    returned = resize(image, *size, out=part)
    assert np.shares_memory(returned, canvas)
    assert (part == resize(image, *size)).all()
    assert canvas.any() and not canvas[:50].any() and not canvas[:, :40].any()


def test_nothing_to_do_is_not_done():
    image = photograph(30, 20)
    assert resize(image, 30, 20) is image


def test_an_image_that_is_not_in_one_piece():
    image = photograph(60, 40)
    assert (resize(image[::2, ::-1], 50, 50) == resize(image[::2, ::-1].copy(), 50, 50)).all()


@pytest.mark.parametrize('out', [np.empty((5, 6, 3), np.uint8), np.empty((6, 5, 3), np.float32)])
def test_an_array_that_does_not_fit_is_refused(out):
    with pytest.raises(ValueError, match=r'uint8 \[6, 5, 3\] is needed'):
        resize(photograph(8, 8), 5, 6, out=out)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_upstreams_pixels_bit_for_bit(width, height, new_width, new_height):
    image = photograph(width, height)
    expected = np.asarray(Image.fromarray(image).resize((new_width, new_height)))
    assert (resize_as_upstream(image, new_width, new_height) == expected).all()


def test_a_little_shrinking_is_sharper_than_area_averages():
    image = photograph(612, 464)
    upstream = resize_as_upstream(image, 591, 448)
    area = cv2.resize(image, (591, 448), interpolation=cv2.INTER_AREA)
    assert psnr(resize(image, 591, 448), upstream) > psnr(area, upstream) + 2
