"""Each request gets its own features, whatever happens to the others."""
import asyncio
import concurrent.futures
import gc
import logging
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

from lmdeploy_ext.vision.tile_scheduler import SchedulerClosed, TileScheduler

from .tile_scheduler_fakes import (HIDDEN, PATIENCE, SIDE, TOKENS, Backend, BrokenTile, Counted,
                                   features, image, late)


@pytest.fixture(params=['host', 'late'])
def transfer(request, monkeypatch):
    """On a CPU, and on a device that does everything as late as it can."""
    return late(monkeypatch) if request.param == 'late' else None


@pytest.fixture
def backend(transfer):
    return Backend()


@pytest.fixture
def scheduler(backend):
    scheduler = TileScheduler(backend, 16)
    yield scheduler
    backend.gate.set()
    scheduler.close()


@pytest.fixture
def no_log():
    """pytest keeps what is logged, errors with their frames."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def submit(scheduler, number, count, broken=(), flow=None):
    """(future, its `uploaded`)."""
    tiles = image(number, count, broken)
    uploaded = Counted(tiles)
    return scheduler.submit(tiles, flow or scheduler.flow(), uploaded), uploaded


def check(future, number, count):
    found = future.result(PATIENCE)
    assert torch.equal(found, features(number, count))


def chained():
    """An error with a cause whose traceback has frames."""
    try:
        try:
            raise KeyError('cause')
        except KeyError as cause:
            raise ValueError('chained') from cause
    except ValueError as error:
        return error


def hold(scheduler, backend):
    """Let the backend be busy with an image of one tile until its gate opens."""
    backend.gate.clear()
    held = submit(scheduler, 999, 1)
    assert backend.entered.acquire(timeout=PATIENCE)
    return held


def test_each_image_gets_its_features_in_order(scheduler):
    futures = [submit(scheduler, number, count)[0] for number, count in
               enumerate([1, 30, 13, 1, 104, 7])]
    for number, (future, count) in enumerate(zip(futures, [1, 30, 13, 1, 104, 7])):
        check(future, number, count)
        assert future.result().shape == (count * TOKENS, HIDDEN)


def test_requests_share_batches_and_a_large_image_is_split(scheduler, backend):
    hold(scheduler, backend)
    futures = [submit(scheduler, number, 7)[0] for number in range(5)]
    backend.gate.set()
    for number, future in enumerate(futures):
        check(future, number, 7)
    assert backend.batches == [1, 16, 16, 3]


def test_one_tile_does_not_wait_for_the_rest_of_a_large_image(scheduler, backend):
    backend.gate.clear()
    large, _ = submit(scheduler, 1, 104)
    assert backend.entered.acquire(timeout=PATIENCE)
    small, _ = submit(scheduler, 2, 1)
    order = []
    for future in (large, small):
        future.add_done_callback(order.append)
    backend.gate.set()
    check(large, 1, 104)
    assert order == [small, large]


def test_requests_get_equal_shares_however_many_images_each_has(scheduler, backend):
    hold(scheduler, backend)
    many, few = scheduler.flow(), scheduler.flow()
    crowd = [submit(scheduler, number, 8, flow=many)[0] for number in range(20)]
    pair = [submit(scheduler, 100 + number, 8, flow=few)[0] for number in range(2)]
    ended = []
    for future in (*crowd, *pair):
        future.add_done_callback(ended.append)
    backend.gate.set()
    for number, future in enumerate(crowd):
        check(future, number, 8)
    assert set(pair) < set(ended[:4])


def test_features_are_in_memory_of_their_own(scheduler):
    one, two = submit(scheduler, 1, 3)[0], submit(scheduler, 2, 5)[0]
    found = one.result(PATIENCE)
    assert found.untyped_storage().nbytes() == found.nbytes
    found.zero_()
    check(two, 2, 5)
    check(submit(scheduler, 3, 3)[0], 3, 3)
    assert not found.any()


def test_the_memory_of_tiles_is_free_once_uploaded_says_so(scheduler, backend):
    """`Counted` overwrites it in that moment; nobody is called twice."""
    images = [submit(scheduler, number, count) for number, count in enumerate([40, 3, 16, 17])]
    for number, ((future, _), count) in enumerate(zip(images, [40, 3, 16, 17])):
        check(future, number, count)
    scheduler.close()
    assert [uploaded.calls for _, uploaded in images] == [1] * 4


def test_tiles_may_lie_anyhow_in_memory_and_are_left_alone(scheduler):
    wide = np.repeat(image(3, 4), 2, axis=1)
    frozen = image(3, 4)
    frozen.flags.writeable = False
    mirrored = image(3, 4)[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    for tiles in (wide[:, ::2], frozen, mirrored):
        before = tiles.copy()
        check(scheduler.submit(tiles, scheduler.flow(), lambda: None), 3, 4)
        assert np.array_equal(tiles, before)


@pytest.mark.parametrize('tiles, found', [
    (image(0, 2).astype(np.float32), r'found tiles float32 \[2, 4, 4, 3\]; expected uint8 \[n,'),
    (image(0, 2)[0], r'found tiles uint8 \[4, 4, 3\]'),
    (np.zeros((1, 8, 8, 3), np.uint8), r'found tiles uint8 \[1, 8, 8, 3\]'),
    (np.zeros((0, SIDE, SIDE, 3), np.uint8), r'found tiles uint8 \[0, 4, 4, 3\]; .* n at least 1'),
    (np.uint8(3), r'found tiles of type uint8; expected'),
    ([[1]], 'found tiles of type list; expected'),
])
def test_what_are_no_tiles_is_refused_and_given_back(scheduler, tiles, found):
    calls = []
    with pytest.raises(ValueError, match=found):
        scheduler.submit(tiles, scheduler.flow(), lambda: calls.append(1))
    assert calls == [1]
    check(submit(scheduler, 1, 1)[0], 1, 1)


def test_sizes_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match='found batches of 9 tiles; expected 1 to 8'):
        TileScheduler(Backend(max_tiles=8), 9)
    with pytest.raises(ValueError, match='found batches of 0 tiles; expected 1 to 8'):
        TileScheduler(Backend(max_tiles=8), 0)
    with pytest.raises(ValueError, match='found a depth of 0 batches; expected at least 1'):
        TileScheduler(Backend(), 8, depth=0)


class TestFailures:

    def test_an_image_fails_alone(self, scheduler, backend):
        hold(scheduler, backend)
        good = [submit(scheduler, number, 3)[0] for number in range(2)]
        bad, uploaded = submit(scheduler, 7, 3, broken=[1])
        good.append(submit(scheduler, 2, 3)[0])
        backend.gate.set()
        for number, future in enumerate(good):
            check(future, number, 3)
        with pytest.raises(BrokenTile, match='among 3'):
            bad.result(PATIENCE)
        scheduler.close()
        assert uploaded.calls == 1
        figures = scheduler.figures()
        assert (figures.images, figures.failed_images) == (4, 1)

    @pytest.mark.parametrize('broken', [0, 20, 39])
    def test_the_rest_of_a_split_image_that_failed_is_not_computed(self, scheduler, backend,
                                                                   broken):
        flow = scheduler.flow()
        bad, uploaded = submit(scheduler, 1, 40, broken=[broken], flow=flow)
        good, _ = submit(scheduler, 2, 20, flow=flow)
        with pytest.raises(BrokenTile):
            bad.result(PATIENCE)
        check(good, 2, 20)
        scheduler.close()
        assert uploaded.calls == 1
        assert scheduler.figures().failed_images == 1

    def test_what_does_not_fail_again_is_no_failure(self, scheduler, backend):
        """A batch may be too large for the memory left; its images are not."""
        hold(scheduler, backend)
        backend.errors += [None, MemoryError('fifteen tiles are too many')]
        futures = [submit(scheduler, number, 5)[0] for number in range(3)]
        backend.gate.set()
        for number, future in enumerate(futures):
            check(future, number, 5)
        assert scheduler.figures().failed_images == 0
        assert backend.batches == [1, 15, 5, 5, 5]

    def test_after_a_failed_batch_nothing_is_run_that_nobody_wants(self, scheduler, backend):
        hold(scheduler, backend)
        futures = [submit(scheduler, number, 3 + number)[0] for number in range(3)]

        def cancelled_meanwhile():
            assert futures[1].cancel()
            return MemoryError('twelve tiles are too many')

        backend.errors += [None, cancelled_meanwhile]
        backend.gate.set()
        check(futures[0], 0, 3)
        check(futures[2], 2, 5)
        assert backend.batches == [1, 12, 3, 5]

    @pytest.mark.parametrize('error', [ValueError('plain'), chained()])
    def test_an_error_keeps_nothing_of_its_batch_alive(self, scheduler, backend, no_log, error):
        """A caller may keep it, in a list of failed requests."""
        held = hold(scheduler, backend)
        backend.errors += [None, MemoryError('six tiles are too many'), error]
        bad, good = submit(scheduler, 1, 3)[0], submit(scheduler, 2, 3)[0]
        backend.gate.set()
        assert bad.exception(PATIENCE) is error
        kept = weakref.ref(good.result(PATIENCE))
        del good, held
        scheduler.close()
        assert kept() is None

    def test_the_log_says_where_an_error_came_from(self, scheduler, caplog):
        with caplog.at_level(logging.WARNING):
            bad, _ = submit(scheduler, 1, 3, broken=[0])
            assert isinstance(bad.exception(PATIENCE), BrokenTile)
        assert 'tile_scheduler_fakes.py' in caplog.text and 'BrokenTile: among 3' in caplog.text

    def test_a_callback_that_raises_ends_nothing(self, scheduler, caplog):
        def broken():
            raise KeyError('not mine')

        with caplog.at_level(logging.ERROR):
            check(scheduler.submit(image(1, 3), scheduler.flow(), broken), 1, 3)
            check(submit(scheduler, 2, 3)[0], 2, 3)
            scheduler.close()
        assert 'giving the memory of tiles back failed' in caplog.text
        assert 'not mine' in caplog.text

    def test_a_worker_that_dies_leaves_nobody_waiting(self, scheduler, backend, caplog):
        held, _ = hold(scheduler, backend)
        backend.errors.append(SystemExit('a model that exits'))
        waiting = [submit(scheduler, number, 40) for number in range(3)]
        backend.gate.set()
        with caplog.at_level(logging.CRITICAL):
            for future, _ in ((held, None), *waiting):
                with pytest.raises(SchedulerClosed, match='ended: SystemExit: a model that exits'):
                    future.result(PATIENCE)
            with pytest.raises(SchedulerClosed, match='ended: SystemExit: a model that exits'):
                submit(scheduler, 1, 1)
        assert 'the vision scheduler ends' in caplog.text
        scheduler.close()
        assert [uploaded.calls for _, uploaded in waiting] == [1] * 3

    def test_a_callback_of_a_future_that_exits_leaves_nobody_waiting(self, scheduler, backend):
        held, _ = hold(scheduler, backend)

        def exits(_):
            raise SystemExit('a callback that exits')

        held.add_done_callback(exits)
        waiting, _ = submit(scheduler, 1, 40)
        backend.gate.set()
        with pytest.raises(SchedulerClosed, match='a callback that exits'):
            waiting.result(PATIENCE)

    def test_a_failed_upload_reaches_its_requests(self, scheduler, monkeypatch):
        def no_memory(tiles, then):
            monkeypatch.undo()
            raise RuntimeError('CUDA out of memory')

        monkeypatch.setattr(scheduler._transfer, 'upload', no_memory)
        bad, uploaded = submit(scheduler, 1, 3)
        with pytest.raises(RuntimeError, match='out of memory'):
            bad.result(PATIENCE)
        assert uploaded.called.wait(PATIENCE)
        check(submit(scheduler, 2, 3)[0], 2, 3)


class TestCancellation:

    def test_a_waiting_image_leaves(self, scheduler, backend):
        hold(scheduler, backend)
        futures = [submit(scheduler, number, 30) for number in range(3)]
        cancelled, uploaded = futures.pop(1)
        assert scheduler.figures().waiting_tiles == 90
        assert cancelled.cancel()
        assert scheduler.figures().waiting_tiles == 60
        assert uploaded.calls == 1
        done, _ = concurrent.futures.wait([cancelled], PATIENCE)
        assert done == {cancelled}
        backend.gate.set()
        check(futures[0][0], 0, 30)
        check(futures[1][0], 2, 30)
        assert sum(backend.batches) == 61
        assert scheduler.figures().cancelled_images == 1

    def test_of_a_begun_image_the_rest_leaves(self, scheduler, backend):
        backend.gate.clear()
        large, uploaded = submit(scheduler, 1, 40)
        assert backend.entered.acquire(timeout=PATIENCE)
        other, _ = submit(scheduler, 2, 2)
        assert large.cancel() and large.cancel()
        backend.gate.set()
        check(other, 2, 2)
        scheduler.close()
        assert backend.batches == [16, 2] and uploaded.calls == 1

    def test_what_is_done_cannot_be_cancelled(self, scheduler):
        future, _ = submit(scheduler, 1, 3)
        check(future, 1, 3)
        assert not future.cancel()
        assert scheduler.figures().cancelled_images == 0

    def test_a_cancelled_task_takes_its_image_along(self, scheduler, backend):
        hold(scheduler, backend)

        async def main():
            tiles, others = image(1, 30), image(2, 3)
            uploaded = Counted(tiles)
            task = asyncio.ensure_future(scheduler.encode(tiles, scheduler.flow(), uploaded))
            other = asyncio.ensure_future(
                scheduler.encode(others, scheduler.flow(), Counted(others)))
            await asyncio.sleep(0)
            assert scheduler.figures().waiting_tiles == 33
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert scheduler.figures().waiting_tiles == 3 and uploaded.calls == 1
            backend.gate.set()
            assert torch.equal(await other, features(2, 3))

        asyncio.run(main())

    def test_an_event_loop_that_closes_disturbs_nobody(self, scheduler, backend):
        hold(scheduler, backend)
        loop = asyncio.new_event_loop()
        tiles = image(1, 3)
        uploaded = Counted(tiles)
        coroutine = scheduler.encode(tiles, scheduler.flow(), uploaded)
        task = loop.create_task(coroutine)
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert scheduler.figures().waiting_tiles == 3
        loop.close()
        after, _ = submit(scheduler, 2, 3)
        backend.gate.set()
        check(after, 2, 3)
        assert uploaded.called.wait(PATIENCE)
        task._log_destroy_pending = False
        coroutine.close()


class TestClose:

    def test_what_runs_is_finished_and_what_waits_fails(self, scheduler, backend):
        running, _ = hold(scheduler, backend)
        waiting = [submit(scheduler, number, 3) for number in range(3)]
        ended = threading.Thread(target=scheduler.close)
        ended.start()
        for future, _ in waiting:
            with pytest.raises(SchedulerClosed, match='closed; expected it open'):
                future.result(PATIENCE)
        assert not running.done()
        backend.gate.set()
        check(running, 999, 1)
        ended.join(PATIENCE)
        assert not ended.is_alive()
        assert [uploaded.calls for _, uploaded in waiting] == [1] * 3

    def test_a_begun_image_that_is_not_all_on_its_way_fails(self, scheduler, backend):
        backend.gate.clear()
        large, uploaded = submit(scheduler, 1, 40)
        assert backend.entered.acquire(timeout=PATIENCE)
        closing = threading.Thread(target=scheduler.close)
        closing.start()
        with pytest.raises(SchedulerClosed):
            large.result(PATIENCE)
        backend.gate.set()
        closing.join(PATIENCE)
        assert uploaded.calls == 1

    def test_afterwards_nothing_is_taken(self, scheduler):
        scheduler.close()
        scheduler.close()
        tiles = image(1, 3)
        uploaded = Counted(tiles)
        with pytest.raises(SchedulerClosed, match='closed; expected it open; close it when'):
            scheduler.submit(tiles, scheduler.flow(), uploaded)
        assert uploaded.calls == 1

    def test_its_threads_end(self, transfer):
        before = set(threading.enumerate())
        scheduler = TileScheduler(Backend(), 8)
        check(submit(scheduler, 1, 20)[0], 1, 20)
        reference = weakref.ref(scheduler)
        scheduler.close()
        assert set(threading.enumerate()) == before
        del scheduler
        gc.collect()
        assert reference() is None

    @pytest.mark.parametrize('where', ['uploaded', 'done'])
    def test_it_may_be_closed_from_its_own_threads(self, scheduler, where):
        closed = threading.Event()

        def close(*_):
            scheduler.close()
            closed.set()

        future = scheduler.submit(image(1, 3), scheduler.flow(),
                                  close if where == 'uploaded' else lambda: None)
        if where == 'done':
            future.add_done_callback(close)
        check(future, 1, 3)
        assert closed.wait(PATIENCE)
        scheduler.close()

    def test_an_interpreter_that_ends_does_not_wait_for_what_waits(self):
        program = '\n'.join((
            'from tests.vision.tile_scheduler_fakes import Backend, image',
            'from lmdeploy_ext.vision.tile_scheduler import TileScheduler',
            'backend = Backend()',
            'scheduler = TileScheduler(backend, 16)',
            'scheduler.submit(image(1, 3), scheduler.flow(), lambda: None).result()',
            'future = scheduler.submit(image(1, 40), scheduler.flow(), lambda: None)',
            'print("the end")'))
        ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                               timeout=PATIENCE)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'the end\n', '')


def test_figures_say_what_happened(scheduler, backend):
    hold(scheduler, backend)
    futures = [submit(scheduler, number, 10)[0] for number in range(4)]
    bad, _ = submit(scheduler, 5, 1, broken=[0])
    futures.pop().cancel()
    waiting = scheduler.figures()
    assert (waiting.waiting_tiles, waiting.batches, waiting.cancelled_images) == (31, 0, 1)
    backend.gate.set()
    concurrent.futures.wait([*futures, bad], PATIENCE)
    scheduler.close()
    figures = scheduler.figures()
    assert (figures.tiles, figures.images, figures.batches) == (32, 4, 3)
    assert (figures.failed_images, figures.cancelled_images) == (1, 1)
    assert figures.batches_by_tiles == {1: 1, 16: 1, 15: 1}
    assert figures.waiting_tiles == 0
    assert 0 < figures.queue_seconds and 0 < figures.run_seconds


@pytest.mark.parametrize('depth', [1, 2, 3])
def test_so_many_batches_are_on_their_way_and_the_next_is_made_as_late_as_can_be(
        monkeypatch, depth):
    transfers = late(monkeypatch)
    backend = Backend()
    scheduler = TileScheduler(backend, 16, depth=depth)
    transfers[0].finishing.clear()
    on_their_way = []
    for number in range(depth):
        on_their_way.append(submit(scheduler, number, 1)[0])
        assert backend.entered.acquire(timeout=PATIENCE)
    rests, wait = threading.Semaphore(0), scheduler._work._changed.wait

    def noted_wait(*arguments):
        rests.release()
        return wait(*arguments)

    monkeypatch.setattr(scheduler._work._changed, 'wait', noted_wait)
    waiting = []
    for number in range(5):
        waiting.append(submit(scheduler, 10 + number, 1)[0])
        assert rests.acquire(timeout=PATIENCE), 'the scheduler looked at it, and took it'
    assert scheduler.figures().waiting_tiles == 5
    assert not any(future.done() for future in on_their_way)
    transfers[0].finishing.set()
    for number, future in enumerate(waiting):
        check(future, 10 + number, 1)
    assert backend.batches == [1] * depth + [5]
    scheduler.close()


def test_tiles_are_given_back_while_the_device_still_computes(monkeypatch):
    transfers = late(monkeypatch)
    scheduler = TileScheduler(Backend(), 16)
    transfers[0].finishing.clear()
    future, uploaded = submit(scheduler, 1, 16)
    assert uploaded.called.wait(PATIENCE)
    assert not future.done()
    transfers[0].finishing.set()
    check(future, 1, 16)
    scheduler.close()


def test_memory_is_not_given_back_while_a_copy_of_it_is_under_way(monkeypatch):
    """However its request ends."""
    transfers = late(monkeypatch)
    scheduler = TileScheduler(Backend(), 16)
    transfers[0].uploading.clear()
    future, uploaded = submit(scheduler, 1, 16)
    assert transfers[0].taken.acquire(timeout=PATIENCE)
    assert future.cancel()
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    assert uploaded.calls == 0
    transfers[0].uploading.set()
    closing.join(PATIENCE)
    assert uploaded.calls == 1


def test_a_lost_device_fails_every_request(monkeypatch):
    transfers = late(monkeypatch)
    scheduler = TileScheduler(Backend(), 16)
    transfers[0].finishing.clear()
    images = [submit(scheduler, number, 10) for number in range(4)]
    transfers[0].broken = RuntimeError('an illegal memory access')
    transfers[0].finishing.set()
    for future, _ in images:
        with pytest.raises(RuntimeError, match='an illegal memory access'):
            future.result(PATIENCE)
    scheduler.close()
    assert [uploaded.calls for _, uploaded in images] == [1] * 4
