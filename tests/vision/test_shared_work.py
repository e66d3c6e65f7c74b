"""Shared work: one computation for all who ask at once, whatever becomes of any of them."""
import asyncio
import gc
import random
import threading
import weakref

import pytest

from lmdeploy_ext.vision.shared_work import SharedFigures, SharedWork, WorkCancelled

SECONDS = 20  # a test that hangs fails after this


@pytest.fixture
def shared():
    work = SharedWork()
    yield work
    work.close()


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    """No exception that was never retrieved, no task that was destroyed, no error in a callback:
    asyncio would log it."""
    yield
    gc.collect()
    records = [*caplog.get_records('call'), *caplog.get_records('teardown')]
    assert [record.getMessage() for record in records if record.name == 'asyncio'] == []


class Gate:
    """A computation that others watch begin, and let end; on any thread."""

    def __init__(self, result='result'):
        self.result = result
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self.times = 0
        self._loop = self._open = None

    async def compute(self):
        self.times += 1
        self._loop, self._open = asyncio.get_running_loop(), asyncio.Event()
        self.begun.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    @staticmethod
    async def nothing():
        pass

    def open(self):
        self._loop.call_soon_threadsafe(self._open.set)


async def happens(event):
    """Wait for a thread's event; the event loop runs on."""
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, SECONDS)


async def until_joined(shared, callers):
    """Return once so many callers have joined a computation that had begun."""
    while shared.figures().shared < callers:
        # it passes through the same queue as they do: no clock is needed
        await shared.result(object(), Gate.nothing)


def run(main):
    return asyncio.run(asyncio.wait_for(main, SECONDS))


def in_threads(*mains):
    """Run coroutines, each on an event loop and a thread of its own; their outcomes."""
    outcomes = [None] * len(mains)

    def target(index):
        try:
            outcomes[index] = run(mains[index])
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=target, args=(index, )) for index in range(len(mains))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 5)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def test_who_asks_at_once_shares_a_computation_and_who_comes_later_does_not(shared):
    gate = Gate(result=object())

    async def main():
        callers = [asyncio.create_task(shared.result('key', gate.compute)) for _ in range(5)]
        await happens(gate.begun)
        await until_joined(shared, 4)
        gate.open()
        assert await asyncio.gather(*callers) == [gate.result] * 5
        assert gate.times == 1
        later = asyncio.create_task(shared.result('key', gate.compute))
        gate.begun.clear()
        await happens(gate.begun)
        gate.open()
        assert await later is gate.result and gate.times == 2

    run(main())


def test_other_keys_do_not_wait(shared):
    gate = Gate()

    async def main():
        slow = asyncio.create_task(shared.result('slow', gate.compute))
        await happens(gate.begun)

        async def fast():
            return 'fast'

        assert await shared.result('fast', fast) == 'fast'
        gate.open()
        assert await slow == 'result'

    run(main())
    assert shared.figures() == SharedFigures(computations=2, shared=0)


def test_callers_on_many_event_loops_share(shared):
    gate = Gate()

    async def caller():
        return await shared.result('key', gate.compute)

    async def opener():
        await happens(gate.begun)
        await until_joined(shared, 5)
        gate.open()

    assert in_threads(*[caller() for _ in range(6)], opener()) == ['result'] * 6 + [None]
    assert gate.times == 1 and shared.figures().shared == 5


def test_a_failure_reaches_all_and_the_next_caller_tries_again(shared):
    gate = Gate(ValueError('bad image'))

    async def caller():
        return await shared.result('key', gate.compute)

    async def opener():
        await happens(gate.begun)
        await until_joined(shared, 2)
        gate.open()

    outcomes = in_threads(caller(), caller(), caller(), opener())
    assert outcomes[:3] == [gate.result] * 3

    async def good():
        return 'good'

    assert run(shared.result('key', good)) == 'good'


@pytest.mark.parametrize('error', [KeyboardInterrupt(), SystemExit(3), StopAsyncIteration(),
                                   KeyError('x'), asyncio.TimeoutError()], ids=repr)
def test_any_error_is_the_callers_and_work_goes_on(shared, error):
    async def bad():
        raise error

    async def good():
        return 'good'

    async def main():
        with pytest.raises(type(error)) as caught:
            await shared.result('key', bad)
        assert caught.value is error
        assert await shared.result('key', good) == 'good'

    run(main())


def test_what_fails_before_it_can_be_awaited_fails_its_callers(shared):
    async def good():
        return 'good'

    with pytest.raises(TypeError):
        run(shared.result('key', lambda: 7))
    with pytest.raises(ZeroDivisionError):
        run(shared.result('key', lambda: 1 / 0))
    assert run(shared.result('key', good)) == 'good'


def test_who_is_cancelled_leaves_and_the_others_get_the_result(shared):
    gate = Gate()

    async def main():
        first, second = (asyncio.create_task(shared.result('key', gate.compute)) for _ in '12')
        await happens(gate.begun)
        await until_joined(shared, 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        assert await second == 'result'
        assert gate.times == 1 and not gate.cancelled.is_set()

    run(main())


def test_when_all_have_left_the_computation_is_cancelled_and_the_next_caller_computes(shared):
    gate, again = Gate(), Gate('again')

    async def main():
        callers = [asyncio.create_task(shared.result('key', gate.compute)) for _ in range(3)]
        await happens(gate.begun)
        await until_joined(shared, 2)
        for caller in callers:
            caller.cancel()
        later = asyncio.create_task(shared.result('key', again.compute))
        await happens(gate.cancelled)
        await happens(again.begun)
        again.open()
        assert await later == 'again'
        assert all(caller.cancelled() for caller in callers)

    run(main())


def test_nobody_joins_a_computation_that_takes_its_time_to_be_cancelled(shared):
    stubborn, fresh = Gate(), Gate('fresh')
    leaving, left, ended = threading.Event(), threading.Event(), threading.Event()

    async def slow_to_end():
        try:
            await stubborn.compute()
        except asyncio.CancelledError:
            leaving.set()
            # a worker that cannot be interrupted
            await happens(left)
            ended.set()
            raise

    async def main():
        first = asyncio.create_task(shared.result('key', slow_to_end))
        await happens(stubborn.begun)
        first.cancel()
        await happens(leaving)
        second = asyncio.create_task(shared.result('key', fresh.compute))
        await happens(fresh.begun)
        joined = asyncio.create_task(shared.result('key', stubborn.compute))
        await until_joined(shared, 1)
        left.set()
        await happens(ended)
        await shared.result('other', Gate.nothing)  # by now it is known, too, that it has ended
        third = asyncio.create_task(shared.result('key', stubborn.compute))
        await until_joined(shared, 2)
        fresh.open()
        assert await asyncio.gather(second, joined, third) == ['fresh'] * 3

    run(main())


def test_who_is_cancelled_after_the_result_came_leaves_the_next_computation_alone(shared):
    gate, again = Gate(), Gate('again')

    async def other():
        assert await shared.result('key', gate.compute) == 'result'
        return await shared.result('key', again.compute)

    async def main():
        first = asyncio.create_task(shared.result('key', gate.compute))
        await happens(gate.begun)
        told = asyncio.get_running_loop().run_in_executor(None, run, other())
        await until_joined(shared, 1)
        gate.open()
        assert again.begun.wait(SECONDS)  # this event loop stands still: the result waits in it
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await shared.result('other', Gate.nothing)
        again.open()
        assert await told == 'again' and not again.cancelled.is_set()

    run(main())


def test_a_computation_goes_on_when_the_event_loop_of_its_first_caller_ends(shared):
    gate, over = Gate(), threading.Event()

    async def first():
        asyncio.create_task(shared.result('key', gate.compute))
        await happens(gate.begun)
        await until_joined(shared, 1)

    def first_thread():
        run(first())  # cancels the task that is left, and ends its loop
        over.set()

    async def second():
        await happens(gate.begun)
        task = asyncio.create_task(shared.result('key', gate.compute))
        await happens(over)
        gate.open()
        return await task

    thread = threading.Thread(target=first_thread)
    thread.start()
    assert run(second()) == 'result' and gate.times == 1
    thread.join()


def test_an_event_loop_that_rests_or_is_closed_holds_nobody_up(shared):
    """`loop.run_until_complete` leaves other tasks of its loop where they are."""
    gate, loop = Gate(), asyncio.new_event_loop()
    task = loop.create_task(shared.result('key', gate.compute))
    loop.run_until_complete(happens(gate.begun))

    async def other():
        task = asyncio.create_task(shared.result('key', gate.compute))
        await until_joined(shared, 1)
        gate.open()
        return await task

    assert run(other()) == 'result' and gate.times == 1
    assert loop.run_until_complete(task) == 'result', 'it is there when its loop runs again'

    gate.begun.clear()
    task = loop.create_task(shared.result('key', gate.compute))
    loop.run_until_complete(happens(gate.begun))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    gate.open()
    assert run(shared.result('other', Gate.nothing)) is None
    task._log_destroy_pending = False


def test_a_computation_that_cancels_itself_is_an_error_and_not_a_cancellation(shared):
    async def cancelled():
        raise asyncio.CancelledError

    async def main():
        with pytest.raises(WorkCancelled, match='expected a result; ask again'):
            await shared.result('key', cancelled)

    run(main())


def test_a_computation_may_ask_for_another(shared):
    async def inner():
        return 'inner'

    async def outer():
        return await shared.result('inner', inner), 'outer'

    assert run(shared.result('outer', outer)) == ('inner', 'outer')


def test_nothing_is_kept(shared):
    class Thing:
        pass

    class Failure(Exception):
        pass

    async def main():
        kept = []

        def computation(fails):
            thing = Thing()
            kept.append(weakref.ref(thing))

            async def compute():
                if fails:
                    raise Failure
                return thing

            return compute

        await shared.result('key', computation(False))
        try:
            await shared.result('key', computation(True))
        except Failure:
            pass
        gate = Gate(Thing())
        kept.append(weakref.ref(gate))
        kept.append(weakref.ref(gate.result))
        task = asyncio.create_task(shared.result('key', gate.compute))
        await happens(gate.begun)
        task.cancel()
        await happens(gate.cancelled)
        await asyncio.gather(task, return_exceptions=True)
        del gate, task
        return kept

    kept = run(main())
    gc.collect()
    assert [each() for each in kept] == [None] * 4


def test_an_error_does_not_keep_itself(shared):
    """It would stay, with all that its frames hold, until the garbage collector comes by."""
    class Failure(Exception):
        pass

    async def bad():
        raise Failure

    async def main():
        try:
            await shared.result('key', bad)
        except Failure as error:
            return weakref.ref(error)

    gc.collect()
    gc.disable()
    try:
        error = run(main())
        run(shared.result('other', Gate.nothing))  # the thread has let go of it by then
        assert error() is None
    finally:
        gc.enable()


def test_the_thread_ends_with_the_object_and_with_close():
    async def here():
        return threading.current_thread()

    work = SharedWork()
    thread = run(work.result('key', here))
    assert thread is not threading.current_thread() and thread.daemon
    del work
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()

    work = SharedWork()
    thread = run(work.result('key', here))
    work.close()
    work.close()
    assert not thread.is_alive()
    with pytest.raises(RuntimeError, match='shared work that is closed'):
        run(work.result('key', here))
    SharedWork().close()


def test_it_may_be_closed_in_its_own_thread(shared):
    """As by the garbage collector, which takes any thread."""
    thread = []

    async def compute():
        thread.append(threading.current_thread())
        shared.close()
        await asyncio.sleep(SECONDS)

    with pytest.raises(WorkCancelled):
        asyncio.run(asyncio.wait_for(shared.result('key', compute), SECONDS))
    thread[0].join(SECONDS)
    assert not thread[0].is_alive()


def test_close_ends_what_runs_and_tells_who_waits(shared):
    gate = Gate()

    async def main():
        task = asyncio.create_task(shared.result('key', gate.compute))
        await happens(gate.begun)
        await asyncio.get_running_loop().run_in_executor(None, shared.close)
        with pytest.raises(WorkCancelled):
            await task

    run(main())
    assert gate.cancelled.is_set()


@pytest.mark.parametrize('seed', range(4))
def test_any_mix_of_loops_keys_failures_and_cancellations_ends_rightly(shared, seed):
    """Six event loops ask for five keys; a computation takes some turns of its loop, then gives
    its key, or fails with it."""
    wrong, most, running, lock = [], {}, {}, threading.Lock()

    def computation(key, chance):
        turns, fails = chance.randrange(6), chance.random() < 0.3

        async def compute():
            with lock:
                running[key] = running.get(key, 0) + 1
                most[key] = max(most.get(key, 0), running[key])
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if fails:
                    raise LookupError(key)
                return key
            finally:
                with lock:
                    running[key] -= 1

        return compute

    async def caller(key, chance):
        try:
            if await shared.result(key, computation(key, chance)) != key:
                wrong.append('the result of another key')
        except LookupError as error:
            if error.args != (key, ):
                wrong.append('the error of another key')

    async def client(chance):
        tasks = []
        for _ in range(100):
            tasks.append(asyncio.create_task(caller(chance.randrange(5), chance)))
            if chance.random() < 0.4:
                await asyncio.sleep(0)
                chance.choice(tasks).cancel()
        left = tasks[90:] if chance.random() < 0.3 else []  # the loop ends under these
        done = await asyncio.gather(*[task for task in tasks if task not in left],
                                    return_exceptions=True)
        wrong.extend(repr(each) for each in done if isinstance(each, Exception))

    outcomes = in_threads(*[client(random.Random(seed * 10 + n)) for n in range(6)])
    assert outcomes == [None] * 6 and wrong == []
    shared.close()  # returns when all that was cancelled has ended
    assert max(most.values()) <= 2, 'one at most that is being cancelled, beside another'
    assert not any(running.values()) and shared._running == {}
