"""Requests that wait for rows."""
import asyncio
import random
import threading

import pytest

from lmdeploy_ext.turbomind.pool_rows import PoolRows
from lmdeploy_ext.turbomind.row_queue import RowQueue


def queue(slots=2, slot_rows=8, kv_tokens=None):
    return RowQueue(PoolRows(slots, slot_rows, kv_tokens))


def run(test):
    asyncio.run(asyncio.wait_for(test, 20))


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def end(rows, lease):
    rows.computed(lease)
    rows.give_back(lease)


def test_who_came_first_is_served_first_also_if_the_next_one_needs_less():
    async def test():
        rows, served = queue(slots=3), []

        async def request(name, tokens):
            lease = await rows.take([(name, tokens)])
            served.append(name)
            return lease

        first = await rows.take([(b'a', 16)])
        large = asyncio.ensure_future(request(b'large', 24))
        await turns()
        small = asyncio.ensure_future(request(b'small', 8))
        await turns()
        assert served == [] and rows.figures().waiting == 2
        await end(rows, first)
        lease = await large
        assert served == [b'large']
        await end(rows, lease)
        await small
        assert rows.figures().waiting == 0 and rows.figures().waits == 2

    run(test())


def test_who_waits_for_another_to_write_an_image_holds_up_nobody():
    async def test():
        rows = queue()
        first = await rows.take([(b'a', 8)])
        same = asyncio.ensure_future(rows.take([(b'a', 8)]))
        await turns()
        other = await rows.take([(b'b', 8)])
        assert other is not None and not same.done()
        rows.written(first)
        assert (await same).images[0] is first.images[0]

    run(test())


def test_a_cancelled_request_leaves_the_queue_and_takes_nothing():
    async def test():
        rows = queue()
        first = await rows.take([(b'a', 16)])
        waits = asyncio.ensure_future(rows.take([(b'b', 16)]))
        behind = asyncio.ensure_future(rows.take([(b'c', 8)]))
        await turns()
        waits.cancel()
        await turns()
        assert rows.figures().waiting == 1
        await end(rows, first)
        await behind

    run(test())


def test_rows_that_were_granted_to_a_request_just_cancelled_are_free_again():
    async def test():
        rows = queue()
        first = await rows.take([(b'a', 16)])
        waits = asyncio.ensure_future(rows.take([(b'b', 16)]))
        await turns()
        await end(rows, first)  # granted, but the task has not run yet
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert rows.figures().rows.rows_in_use == 0
        assert await rows.take([(b'c', 16)], wait=False) is not None

    run(test())


def test_who_does_not_want_to_wait_goes_without():
    async def test():
        rows = queue()
        await rows.take([(b'a', 16)])
        assert await rows.take([(b'b', 8)], wait=False) is None
        assert rows.figures().refused == 1 and rows.figures().waiting == 0

    run(test())


def test_what_never_fits_does_not_wait():
    async def test():
        rows = queue()
        assert await rows.take([(b'a', 24)]) is None

    run(test())


def test_where_no_generation_is_left_nobody_waits():
    async def test():
        rows = queue(slots=1, slot_rows=2)
        for key in (b'a', b'b'):
            await end(rows, await rows.take([(key, 2)]))
        assert await rows.take([(b'c', 2)]) is None

    run(test())


@pytest.mark.parametrize('seed', range(3))
def test_requests_in_several_event_loops_all_end_and_leave_nothing_behind(seed):
    """Some are cancelled; sequences end in threads of their own, as TurboMind's do."""
    rng = random.Random(seed)
    rows = queue(slots=6, slot_rows=8, kv_tokens=0)
    in_use, problems, ends = set(), [], []

    async def request(number):
        wanted = [(b'%d' % rng.randrange(20), 8) for _ in range(rng.randrange(1, 4))]
        wanted = [(key, 8 * (1 + key[0] % 3)) for key, _ in wanted]
        lease = await rows.take(wanted)
        if lease is None:
            return
        for image in lease.fresh:
            if image in in_use:
                problems.append(image)
            in_use.add(image)
        try:
            await asyncio.sleep(rng.random() / 2000)
            rows.written(lease)
            await asyncio.sleep(rng.random() / 2000)
            if rng.random() < 0.8:
                rows.computed(lease)
        finally:
            for image in lease.fresh:
                in_use.discard(image)
            ends.append(threading.Thread(target=rows.give_back, args=(lease, )))
            ends[-1].start()

    async def loop():
        tasks = [asyncio.ensure_future(request(number)) for number in range(150)]
        for task in rng.sample(tasks, 30):
            await asyncio.sleep(rng.random() / 500)
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        problems.extend(error for error in done if isinstance(error, Exception))

    threads = [threading.Thread(target=run, args=(loop(), )) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for thread in ends:
        thread.join(20)
    figures = rows.figures()
    assert not problems and figures.waiting == 0 and figures.rows.rows_in_use == 0
