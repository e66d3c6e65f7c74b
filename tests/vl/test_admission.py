"""Places for images: bounded, in order, all or nothing, and none is ever lost."""
import asyncio
import gc
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vl.admission import Admission, _Waiter


def enter(admission, images):
    """Places for a request that has to get them at once."""
    return asyncio.run(asyncio.wait_for(admission.enter(images), 5))


def free_places(admission):
    """Whether all places are free: a request for all of them is let in."""
    for place in enter(admission, admission.places):
        place.free()
    return admission.places


def test_who_asks_first_is_let_in_first_also_where_less_would_fit_behind():
    async def run():
        admission, order = Admission(4), []

        async def request(name, images):
            places = await admission.enter(images)
            order.append(name)
            return places

        first = await request('first', 3)
        large = asyncio.create_task(request('large', 2))
        small = asyncio.create_task(request('small', 1))
        await asyncio.sleep(0.01)
        assert order == ['first'], 'the small one fits, but the large one came before it'
        first[0].free()
        first[1].free()
        await asyncio.wait_for(asyncio.gather(large, small), 5)
        assert order == ['first', 'large', 'small']

    asyncio.run(run())


def test_a_request_of_more_images_than_places_gets_all_places():
    admission = Admission(3)
    places = enter(admission, 100)
    assert len(places) == 3
    for place in places:
        place.free()
    assert free_places(admission) == 3


def test_a_place_that_is_freed_twice_or_dropped_is_free_once():
    admission = Admission(2)
    one, two = enter(admission, 2)
    one.free()
    one.free()
    del one, two
    assert len(enter(admission, 2)) == 2


def test_a_cancelled_request_lets_those_behind_it_in():
    async def run():
        admission = Admission(2)
        held = await admission.enter(1)
        large = asyncio.create_task(admission.enter(2))
        small = asyncio.create_task(admission.enter(1))
        await asyncio.sleep(0.01)
        large.cancel()
        assert len(await asyncio.wait_for(small, 5)) == 1
        return admission, held

    admission, held = asyncio.run(run())
    held[0].free()
    assert free_places(admission) == 2


def test_places_come_back_from_an_event_loop_that_is_gone():
    admission = Admission(1)
    held = enter(admission, 1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(admission.enter(1))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    task._log_destroy_pending = False
    del task
    gc.collect()
    held[0].free()
    assert free_places(admission) == 1


@pytest.mark.parametrize('seed', range(3))
def test_many_threads_and_loops_with_cancellations_lose_no_place(seed):
    """Several event loops at once; requests end, fail, are cancelled, or just drop their places.
    No more places than there are are ever held."""
    admission, in_use, most, lock = Admission(5), [0], [0], threading.Lock()

    async def request(chance, images):
        places = await admission.enter(images)
        held = len(places)
        try:
            with lock:
                in_use[0] += held
                most[0] = max(most[0], in_use[0])
            await asyncio.sleep(chance.random() * 0.003)
            if chance.random() < 0.2:
                raise RuntimeError('the request fails')
        finally:
            with lock:
                in_use[0] -= held
            if chance.random() < 0.5:
                del places[:]  # dropped, not freed
            for place in places:
                place.free()

    async def client(chance):
        tasks = []
        for _ in range(60):
            tasks.append(asyncio.create_task(request(chance, chance.randint(1, 8))))
            if chance.random() < 0.3:
                await asyncio.sleep(0)
                chance.choice(tasks).cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(client(random.Random(n))))
               for n in range(seed * 10, seed * 10 + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 5
    gc.collect()
    assert free_places(admission) == 5


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(1, 9), st.sampled_from(
    ['free', 'drop', 'cancel'])), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_order_of_requests_ends_with_all_places_free(places, requests):
    admission = Admission(places)

    async def request(images, end):
        held = await admission.enter(images)
        try:
            await asyncio.sleep(0)
            if end == 'drop':
                held.clear()
        finally:
            for place in held:
                place.free()

    async def run():
        tasks = [asyncio.create_task(request(*each)) for each in requests]
        await asyncio.sleep(0)
        for task, (_, end) in zip(tasks, requests):
            if end == 'cancel':
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    asyncio.run(run())
    assert free_places(admission) == places


class LeavesAtOnce(list):
    """Of a waiter's decision: it is cancelled in the moment in which it has been admitted."""

    def __init__(self, waiter):
        super().__init__([None])
        self.waiter, self.found_admitted = waiter, None

    def pop(self):
        decision = super().pop()
        if self.found_admitted is None:
            self.found_admitted = False
            self.found_admitted = self.waiter.leave()
        return decision


def test_who_leaves_in_the_moment_of_its_admission_gives_its_places_back():
    async def run():
        waiter = _Waiter(1)
        waiter._undecided = LeavesAtOnce(waiter)
        assert waiter.admit() and waiter._undecided.found_admitted

    asyncio.run(run())


def test_who_left_before_its_admission_has_nothing_to_give_back():
    async def run():
        waiter = _Waiter(1)
        assert not waiter.leave() and not waiter.admit()

    asyncio.run(run())
