"""Requests that wait for something, first come first served, in any number of event loops."""
import asyncio
import enum
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, List, Optional, TypeVar, Union

T = TypeVar('T')


class Wait(enum.Enum):
    """What an attempt that has to be repeated means for those behind it.

    Attributes:
        ASIDE: it takes nothing from them; they may go first.
        AHEAD: they wait, or it would wait for ever.
    """
    ASIDE = enum.auto()
    AHEAD = enum.auto()


@dataclass(eq=False)
class _Waiter:
    attempt: Callable[[], Any]
    undo: Callable[[Any], None]
    result: 'Future[Any]' = field(default_factory=Future)


class WaitingLine(Generic[T]):
    """Attempts that are repeated, in order, whenever something has changed.

    Args:
        lock: held during every attempt.
    """

    def __init__(self, lock: 'threading.RLock') -> None:
        self._lock = lock
        self._waiters: List[_Waiter] = []
        self.waits = 0

    @property
    def waiting(self) -> int:
        """Requests."""
        return len(self._waiters)

    async def wait_for(self, attempt: Callable[[], Union[T, Wait]], undo: Callable[[T], None],
                       patient: bool = True) -> Optional[T]:
        """What an attempt gives in the end. Cancelling it takes it out of the line.

        Args:
            attempt: not asynchronous; it raises nothing.
            undo: for a result that nobody takes, since the request was cancelled.
            patient: otherwise None instead of waiting.
        """
        waiter = _Waiter(attempt, undo)
        with self._lock:
            self._waiters.append(waiter)
            self.serve()
            if not waiter.result.done():
                if not patient:
                    self._waiters.remove(waiter)
                    return None
                self.waits += 1
        try:
            return await asyncio.wrap_future(waiter.result)
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def serve(self) -> None:
        """Something has changed: repeat the attempts."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
            while waiters:
                waiter = waiters.pop(0)
                result = waiter.attempt()
                if isinstance(result, Wait):
                    self._waiters.append(waiter)
                    if result is Wait.AHEAD:
                        break
                elif waiter.result.set_running_or_notify_cancel():
                    waiter.result.set_result(result)
                else:  # cancelled, and on its way to withdraw
                    waiter.undo(result)
            self._waiters += waiters

    def _withdraw(self, waiter: _Waiter) -> None:
        """Its request is cancelled, maybe after it had a result but before it heard of that."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.result.cancelled():
                waiter.undo(waiter.result.result())
            self.serve()
