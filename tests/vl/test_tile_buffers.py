"""Buffers are reused, never shared, and bounded."""
import gc
import threading
import weakref

import numpy as np
import pytest

from lmdeploy_ext.vl.tile_buffers import TileBuffers

TILE = 4 * 4 * 3


@pytest.fixture
def buffers():
    return TileBuffers(side=4, pinned=False, limit_bytes=10 * TILE)


def test_a_buffer_that_is_given_back_is_lent_again(buffers):
    array = buffers.take(3)
    assert array.shape == (3, 4, 4, 3) and array.dtype == np.uint8
    address = array.ctypes.data
    buffers.give(array)
    del array
    assert buffers.take(3).ctypes.data == address


def test_nothing_is_lent_twice(buffers):
    arrays = [buffers.take(2) for _ in range(4)]
    assert len({array.ctypes.data for array in arrays}) == 4


def test_giving_back_twice_is_an_error(buffers):
    array = buffers.take(1)
    buffers.give(array)
    with pytest.raises(ValueError, match='not lent'):
        buffers.give(array)


@pytest.mark.parametrize('wrong', [lambda array: array[:1], lambda array: array.copy()])
def test_only_the_buffer_itself_is_taken_back(buffers, wrong):
    array = buffers.take(2)
    with pytest.raises(ValueError, match='give back what take'):
        buffers.give(wrong(array))
    buffers.give(array)


def test_no_more_than_the_limit_is_kept_and_the_longest_unused_goes_first(buffers):
    first, second, third = buffers.take(5), buffers.take(4), buffers.take(3)
    addresses = [array.ctypes.data for array in (second, third)]
    for array in (first, second, third):
        buffers.give(array)
    assert buffers.idle_bytes == 7 * TILE
    assert [buffers.take(4).ctypes.data, buffers.take(3).ctypes.data] == addresses


def test_a_buffer_above_the_limit_is_not_kept_and_costs_no_other_its_place(buffers):
    small, large = buffers.take(2), buffers.take(11)
    buffers.give(small)
    buffers.give(large)
    assert buffers.idle_bytes == 2 * TILE


def test_a_buffer_that_is_never_given_back_is_freed(buffers):
    lost = weakref.ref(buffers.take(2))
    gc.collect()
    assert lost() is None
    assert buffers.idle_bytes == 0


def test_no_tiles_need_no_buffer(buffers):
    with pytest.raises(ValueError, match='at least 1'):
        buffers.take(0)


def test_threads_never_hold_the_same_buffer(buffers):
    wrong = []

    def work(number):
        for turn in range(300):
            array = buffers.take(1 + turn % 3)
            array[:] = number
            if (array != number).any():
                wrong.append(number)
            buffers.give(array)

    threads = [threading.Thread(target=work, args=(number, )) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert buffers.idle_bytes <= 10 * TILE


@pytest.mark.gpu
def test_pinned_buffers_are_page_locked():
    torch = pytest.importorskip('torch')
    if not torch.cuda.is_available():
        pytest.skip('needs a CUDA device')
    buffers = TileBuffers(side=4, pinned=True, limit_bytes=10 * TILE)
    array = buffers.take(2)
    assert torch.from_numpy(array).is_pinned()
    buffers.give(array)
