"""Any mix of requests, sizes, cancellations and failures; and very many at once."""
import asyncio
import gc
import threading
import tracemalloc
import weakref
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vision import tile_scheduler
from lmdeploy_ext.vision.tile_scheduler import SchedulerClosed, TileScheduler

from .tile_scheduler_fakes import (PATIENCE, Backend, BrokenTile, Counted, LateTransfer, features,
                                   image, late)

THREADS, REQUESTS = 64, 2000


@st.composite
def images(draw):
    """(request, tiles, broken ones, whether it is cancelled)."""
    count = draw(st.integers(1, 30))
    broken = draw(st.sampled_from([(), (), (), (0, ), (count - 1, )]))
    return draw(st.integers(0, 5)), count, broken, draw(st.sampled_from([False, False, True]))


@pytest.mark.parametrize('kind', ['host', 'late'])
@settings(max_examples=60, deadline=None)
@given(mix=st.lists(images(), min_size=1, max_size=25), batch_tiles=st.integers(1, 16),
       depth=st.integers(1, 3), let_go=st.integers(0, 24), close=st.booleans())
def test_every_image_gets_its_own_features_or_its_own_error(kind, mix, batch_tiles, depth, let_go,
                                                            close):
    """Some cancelled while others wait or run, the scheduler maybe closed in the middle."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == 'late':
            patch.setattr(tile_scheduler, 'transfer_to', LateTransfer)
        backend = Backend()
        backend.gate.clear()
        scheduler = TileScheduler(backend, batch_tiles, depth=depth)
    flows = [scheduler.flow() for _ in range(6)]
    futures, callbacks = [], []
    for number, (request, count, broken, _) in enumerate(mix):
        tiles = image(number, count, broken)
        callbacks.append(Counted(tiles))
        futures.append(scheduler.submit(tiles, flows[request], callbacks[-1]))
        if number == let_go:
            backend.gate.set()
    for future, (*_, cancelled) in zip(futures, mix):
        if cancelled:
            future.cancel()
    opens = threading.Thread(target=backend.gate.set)
    opens.start()
    if close:
        scheduler.close()
    opens.join()
    for number, (future, (_, count, broken, cancelled)) in enumerate(zip(futures, mix)):
        try:
            assert torch.equal(future.result(PATIENCE), features(number, count))
            assert not broken
        except CancelledError:
            assert cancelled
        except BrokenTile:
            assert broken
        except SchedulerClosed:
            assert close
    scheduler.close()
    assert [uploaded.calls for uploaded in callbacks] == [1] * len(mix)
    figures = scheduler.figures()
    assert figures.images + figures.failed_images + figures.cancelled_images == len(mix)
    assert figures.waiting_tiles == 0
    assert max(figures.batches_by_tiles, default=0) <= batch_tiles


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=8))
def test_images_of_a_request_end_in_their_order(requests):
    backend = Backend()
    backend.gate.clear()
    scheduler = TileScheduler(backend, 16)
    ended = []
    flows = [scheduler.flow() for _ in requests]
    futures = []
    for flow, counts in zip(flows, requests):
        for index, count in enumerate(counts):
            future = scheduler.submit(image(1, count), flow, lambda: None)
            future.add_done_callback(lambda _, key=(flow, index): ended.append(key))
            futures.append(future)
    backend.gate.set()
    scheduler.submit(image(1, 1), scheduler.flow(), lambda: None).result(PATIENCE)
    for future in futures:
        future.result(PATIENCE)
    scheduler.close()
    for flow, counts in zip(flows, requests):
        assert [index for which, index in ended if which is flow] == list(range(len(counts)))


class Crowd:
    """Requests from many threads, half of which run event loops, all at once."""

    def __init__(self, scheduler, seed):
        self.scheduler = scheduler
        self.seed = seed
        self.outcomes = []  # of each image: 'features', 'failed', 'cancelled', or what is wrong
        self.callbacks = []
        self.alive = []  # weak references to what should be gone in the end

    def run(self):
        each = REQUESTS // THREADS
        threads = [threading.Thread(target=self._thread, args=(number, each + (
            number < REQUESTS % THREADS))) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)

    def _thread(self, number, requests):
        chance = np.random.default_rng((self.seed, number))
        if number % 2:
            asyncio.run(self._tasks(chance, requests))
            return
        waiting = [self._submit(chance) for _ in range(requests)]
        for _, future, cancelled in waiting:
            if cancelled:
                future.cancel()
        for expected, future, _ in waiting:
            try:
                self._got(expected, future.result(PATIENCE))
            except BrokenTile:
                self._failed(expected)
            except CancelledError:
                self.outcomes.append('cancelled')

    async def _tasks(self, chance, requests):
        tasks = []
        for _ in range(requests):
            tiles, uploaded, expected, cancelled = self._image(chance)
            task = asyncio.ensure_future(
                self.scheduler.encode(tiles, self.scheduler.flow(), uploaded))
            del tiles
            await asyncio.sleep(0)  # it is in the queue
            if cancelled:
                task.cancel()
            tasks.append((expected, task))
        for expected, task in tasks:
            try:
                self._got(expected, await asyncio.wait_for(task, PATIENCE))
            except BrokenTile:
                self._failed(expected)
            except asyncio.CancelledError:
                self.outcomes.append('cancelled')

    def _image(self, chance):
        number, count = int(chance.integers(50000)), int(chance.choice([1, 1, 1, 2, 7, 13, 30]))
        broken = (int(chance.integers(count)), ) if chance.random() < 0.05 else ()
        tiles = image(number, count, broken)
        uploaded = Counted(tiles)
        self.callbacks.append(uploaded)
        self.alive.append(weakref.ref(tiles))
        return tiles, uploaded, (number, count, broken), chance.random() < 0.1

    def _submit(self, chance):
        tiles, uploaded, expected, cancelled = self._image(chance)
        future = self.scheduler.submit(tiles, self.scheduler.flow(), uploaded)
        self.alive.append(weakref.ref(future))
        return expected, future, cancelled

    def _got(self, expected, found):
        self.alive.append(weakref.ref(found))
        number, count, broken = expected
        right = not broken and torch.equal(found, features(number, count))
        self.outcomes.append('features' if right else f'wrong: {expected}')

    def _failed(self, expected):
        self.outcomes.append('failed' if expected[-1] else f'failed for nothing: {expected}')


@pytest.mark.parametrize('kind', ['host', 'late'])
def test_2000_requests_of_64_threads_and_their_tasks(kind, monkeypatch, caplog):
    """Nothing hangs, nothing is lost, and nothing is left."""
    caplog.set_level('CRITICAL', 'lmdeploy_ext')  # of a hundred failures
    if kind == 'late':
        late(monkeypatch)
    before = set(threading.enumerate())
    scheduler = TileScheduler(Backend(), 16)
    crowd = Crowd(scheduler, seed=1)
    crowd.run()
    scheduler.close()
    assert len(crowd.outcomes) == REQUESTS
    assert set(crowd.outcomes) == {'features', 'failed', 'cancelled'}
    assert crowd.outcomes.count('features') > REQUESTS / 2
    assert all(uploaded.calls == 1 for uploaded in crowd.callbacks)
    figures = scheduler.figures()
    assert figures.images + figures.failed_images + figures.cancelled_images == REQUESTS
    gc.collect()  # the tests' own tracebacks and tasks
    assert not any(reference() is not None for reference in crowd.alive)
    assert set(threading.enumerate()) == before


def test_memory_is_flat(caplog):
    """What Python holds after three crowds is what it holds after one, give or take the capacity
    of sets and lists, which is that of the longest queue there was: 64 bytes an image. A future
    alone that is lost has a thousand."""
    caplog.set_level('CRITICAL', 'lmdeploy_ext')
    backend = Backend()
    scheduler = TileScheduler(backend, 16)

    def crowd(seed):
        Crowd(scheduler, seed).run()
        backend.batches.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = crowd(1)
        crowd(2)
        third = crowd(3)
    finally:
        tracemalloc.stop()
        scheduler.close()
    assert third - first < 2 * REQUESTS * 64, f'{first} bytes after one crowd, {third} after three'
