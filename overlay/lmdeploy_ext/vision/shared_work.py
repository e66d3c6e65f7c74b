"""Computations that several wait for: of those who ask for the same at once, one computes."""
import asyncio
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Dict, Generic, Hashable, Optional, Set, TypeVar

T = TypeVar('T')


class WorkCancelled(RuntimeError):
    """A computation ended without a result, and nobody who waited for it had asked for that."""


@dataclass(frozen=True)
class SharedFigures:
    """Since the start.

    Attributes:
        computations: begun.
        shared: callers who got the result of a computation that had begun before they came.
    """
    computations: int
    shared: int


class _Waiter(Generic[T]):
    """A caller on its own event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told: 'asyncio.Future[None]' = self._loop.create_future()
        self._value: Optional[T] = None
        self._error: Optional[BaseException] = None

    def tell(self, value: Optional[T], error: Optional[BaseException]) -> None:
        """Hand over the outcome; from any thread."""
        self._value, self._error = value, error
        try:
            self._loop.call_soon_threadsafe(self._awaken)
        except RuntimeError:
            pass  # its event loop is closed: nobody waits there any more

    def _awaken(self) -> None:
        if not self._told.done():
            self._told.set_result(None)

    async def outcome(self) -> T:
        await self._told
        try:
            if self._error is not None:
                raise self._error
            return self._value
        finally:
            # the error's traceback holds this frame: without this they would keep each other
            self._value = self._error = None


@dataclass(eq=False)
class _Work:
    """A computation and those who wait for it."""
    task: 'asyncio.Task'
    waiters: Set[_Waiter] = field(default_factory=set)


class SharedWork:
    """Runs computations by key; callers of one key share the one that is running.

    Computations run on an event loop of this object's own, in a thread of its own. So none ends
    or rests because the event loop of whoever asked first does, and since that thread alone
    touches the state, there is nothing to lock. Nothing is kept once a computation has ended.
    """

    def __init__(self) -> None:
        self._running: Dict[Hashable, _Work] = {}
        self._computations = self._shared = 0
        self._lock = threading.Lock()  # of what follows
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._closed = False

    async def result(self, key: Hashable, compute: Callable[[], Awaitable[T]]) -> T:
        """The result of `compute`, or of another caller's for the same key that is running.

        A caller that is cancelled leaves; when all have left, the computation is cancelled, and
        who comes after that computes anew. So does who comes after a failure.

        Args:
            compute: called in the thread of this object if at all, and its result awaited there.
                It may outlive the caller: what it needs, it has to hold itself.

        Raises:
            Exception: what the computation raised; all who wait get the same object.
            WorkCancelled: the computation cancelled itself, or `close` did.
            RuntimeError: this object is closed.
        """
        waiter: _Waiter[T] = _Waiter()
        self._call(self._join, key, compute, waiter)
        del compute  # of one who only waits, it may go now
        try:
            return await waiter.outcome()
        except BaseException:  # cancelled; or, where it is the outcome, leaving does nothing
            self._leave_soon(key, waiter)
            raise

    def figures(self) -> SharedFigures:
        """The numbers of now; from any thread."""
        return SharedFigures(self._computations, self._shared)

    def close(self) -> None:
        """Cancel what runs and end the thread; in that thread itself, which the garbage collector
        may call this in, it ends soon."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if thread is not None and thread.is_alive():
            try:
                loop.call_soon_threadsafe(_end_soon, loop)
            except RuntimeError:
                pass  # another close() has ended it meanwhile
            if thread is not threading.current_thread():
                thread.join()

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread of this object, after all that were asked for before."""
        with self._lock:
            if self._closed:
                raise RuntimeError('found shared work that is closed; expected it open; ask '
                                   'before close() is called')
            if self._loop is None:
                self._start()
            self._loop.call_soon_threadsafe(function, *arguments)

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        # neither holds this object: it ends when nobody does
        self._thread = threading.Thread(target=_serve, args=(self._loop, ), daemon=True,
                                        name='shared-work')
        self._thread.start()
        weakref.finalize(self, _stop, self._loop).atexit = False

    def _leave_soon(self, key: Hashable, waiter: _Waiter) -> None:
        # without the lock: the garbage collector may be what ends a caller, in a thread that
        # holds it
        try:
            self._loop.call_soon_threadsafe(self._leave, key, waiter)
        except RuntimeError:
            pass  # closed: there is nothing to leave

    def _join(self, key: Hashable, compute: Callable[[], Awaitable[T]], waiter: _Waiter) -> None:
        work = self._running.get(key)
        if work is None:
            self._computations += 1
            task = self._loop.create_task(_outcome(compute))
            work = self._running[key] = _Work(task)
            task.add_done_callback(lambda _: self._finish(key, work))
        else:
            self._shared += 1
        work.waiters.add(waiter)

    def _leave(self, key: Hashable, waiter: _Waiter) -> None:
        work = self._running.get(key)
        if work is None or waiter not in work.waiters:
            return  # it has been told
        work.waiters.remove(waiter)
        if not work.waiters:
            # forgotten at once: nobody may join a computation that is about to end
            del self._running[key]
            work.task.cancel()

    def _finish(self, key: Hashable, work: _Work) -> None:
        if self._running.get(key) is work:
            del self._running[key]
        if work.task.cancelled():
            value, error = None, WorkCancelled(
                'the computation was cancelled from within, not by those who wait for it; '
                'expected a result; ask again, unless something is being closed')
        else:
            value, error = work.task.result()
        for waiter in work.waiters:
            waiter.tell(value, error)


async def _outcome(compute: Callable[[], Awaitable[T]]) -> Any:
    """(value, None) or (None, error)."""
    try:
        return await compute(), None
    # any error at all is its callers', and SystemExit would end the thread under all others
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return None, error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped."""
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.call_soon_threadsafe(loop.stop)
    except RuntimeError:
        pass  # closed already


def _end_soon(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of this thread's event loop, and stop it once they have ended."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    ended = asyncio.gather(*tasks, return_exceptions=True)
    ended.add_done_callback(lambda _: loop.stop())
