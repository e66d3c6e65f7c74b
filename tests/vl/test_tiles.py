"""What stands where on the tiles."""
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vl.resize import resize
from lmdeploy_ext.vl.tile_policy import FITS
from lmdeploy_ext.vl.tiles import MEAN_COLOUR, cut, needed
from lmdeploy_ext.vl.tiling import TileModel, TilePolicy, plan
from tests.vl.photographs import photograph, psnr

SIDE = 56
MODEL = TileModel(side=SIDE, tokens=4)
FITTED = [TilePolicy(fit=fit) for fit in FITS]
POLICIES = st.sampled_from([*FITTED, TilePolicy('stock')])
SIDES = st.integers(1, 400)


def canvas(tiles, columns, rows):
    """The tiles of a grid put together again: [rows * side, columns * side, 3]."""
    side = tiles.shape[1]
    grid = tiles[:columns * rows].reshape(rows, columns, side, side, 3)
    return grid.swapaxes(1, 2).reshape(rows * side, columns * side, 3)


def laid(content, left, top, width, height):
    """A content on a canvas of mean colour, pixel by pixel the plain way."""
    result = np.full((height, width, 3), MEAN_COLOUR, np.uint8)
    y, x = np.mgrid[:height, :width]
    inside = ((y >= top) & (y < top + len(content)) & (x >= left) & (x < left + len(content[0])))
    result[inside] = content[y[inside] - top, x[inside] - left]
    return result


@settings(deadline=None)
@given(SIDES, SIDES, POLICIES, st.integers(1, 12))
def test_the_tiles_are_the_canvas_cut_up_row_by_row(width, height, policy, most):
    image = photograph(width, height)
    it = plan(width, height, policy, MODEL, most)
    tiles = cut(image, it, SIDE, upstream=False)
    content = resize(image, it.width, it.height)
    expected = laid(content, it.left, it.top, it.columns * SIDE, it.rows * SIDE)
    assert (canvas(tiles, it.columns, it.rows) == expected).all()
    assert len(tiles) == it.tiles


@settings(deadline=None)
@given(SIDES, SIDES, POLICIES)
def test_the_thumbnail_is_the_whole_image_in_the_last_tile(width, height, policy):
    image = photograph(width, height)
    it = plan(width, height, policy, MODEL)
    if it.thumbnail:
        tiles = cut(image, it, SIDE, upstream=False)
        small = resize(image, it.thumbnail_width, it.thumbnail_height)
        left, top = (SIDE - it.thumbnail_width) // 2, (SIDE - it.thumbnail_height) // 2
        expected = laid(small, left, top, SIDE, SIDE)
        assert psnr(tiles[-1], expected) > 30  # it may come from the already resized image


def test_an_image_that_fits_is_shown_as_it_is():
    image = photograph(50, 40)
    it = plan(50, 40, TilePolicy(fit='pad'), MODEL)
    tiles = cut(image, it, SIDE, upstream=False)
    assert (tiles[0, it.top:it.top + 40, it.left:it.left + 50] == image).all()
    assert (tiles[0, :it.top] == MEAN_COLOUR).all()
    assert (tiles[0, :, it.left + 50:] == MEAN_COLOUR).all()


def test_a_crop_keeps_the_middle():
    it = plan(58, 56, TilePolicy(fit='crop'), MODEL)
    image = photograph(58, 56)
    assert (cut(image, it, SIDE, upstream=False)[0] == image[:, 1:57]).all()


@pytest.mark.parametrize('policy', [*FITTED, TilePolicy('stock')])
@pytest.mark.parametrize('upstream', [False, True])
def test_buffers_with_old_tiles_in_them_are_overwritten_everywhere(policy, upstream):
    for size in ((30, 20), (1, 400), (400, 1), (170, 113), (300, 300)):
        it = plan(*size, policy, MODEL)
        image = photograph(*size)
        used = np.random.default_rng(1).integers(0, 256, (it.tiles, SIDE, SIDE, 3), np.uint8)
        assert cut(image, it, SIDE, upstream, out=used) is used
        assert (used == cut(image, it, SIDE, upstream)).all()


@pytest.mark.parametrize('out', [
    np.empty((1, SIDE, SIDE, 3), np.uint8),
    np.empty((2, SIDE, SIDE, 3), np.float32),
    np.empty((4, SIDE, SIDE, 3), np.uint8)[::2],
])
def test_a_buffer_that_does_not_fit_is_refused(out):
    it = plan(100, 50, TilePolicy(), MODEL)
    with pytest.raises(ValueError, match=r'uint8 \[2, 56, 56, 3\] in one piece is needed'):
        cut(photograph(100, 50), it, SIDE, upstream=False, out=out)


@settings(deadline=None, max_examples=25)
@given(st.integers(60, 1200), st.integers(60, 1200), POLICIES)
def test_an_image_that_was_decoded_smaller_gives_nearly_the_same_tiles(width, height, policy):
    it = plan(width, height, policy, MODEL)
    image = photograph(width, height)
    at_least = needed(it)
    for step in (8, 4, 2):
        small = -(-width // step), -(-height // step)
        if small[0] >= at_least[0] and small[1] >= at_least[1]:
            decoded = resize(image, *small)
            tiles = cut(decoded, it, SIDE, upstream=False)
            assert psnr(tiles, cut(image, it, SIDE, upstream=False)) > 28
            break


def test_threads_do_not_share_what_they_work_in():
    images = [photograph(170 + seed, 113, seed) for seed in range(4)]
    plans = [plan(image.shape[1], 113, TilePolicy(), MODEL) for image in images]
    expected = [cut(image, it, SIDE, False) for image, it in zip(images, plans)]
    wrong = []

    def work(index):
        for _ in range(50):
            if (cut(images[index], plans[index], SIDE, False) != expected[index]).any():
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index, )) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_grid_beyond_the_scratch_of_a_thread():
    image = photograph(1000, 700)
    model = TileModel(side=448, max_tiles=64)
    it = plan(4000, 3500, TilePolicy(max_shrink=1), model)
    tiles = cut(image, it, 448, upstream=False)
    shown = resize(image, it.width, it.height)
    assert shown.nbytes > 32 << 20
    assert (canvas(tiles, it.columns, it.rows)[it.top, it.left:it.left + it.width] == shown[0]
            ).all()
