"""Requests that wait for rows of the pool, first come first served, in any number of event loops."""
import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Sequence

from lmdeploy_ext.turbomind.pool_rows import Lease, PoolRows, Refusal, RowFigures, Wanted


@dataclass(frozen=True)
class QueueFigures:
    """Counters since the start, and what is there now.

    Attributes:
        waiting: requests.
        waits: requests that had to.
        refused: requests without rows, for the stock path.
    """
    rows: RowFigures
    waiting: int
    waits: int
    refused: int


@dataclass(eq=False)
class _Waiter:
    wanted: Sequence[Wanted]
    granted: 'Future[Optional[Lease]]' = field(default_factory=Future)


class RowQueue:
    """A pool's rows for many threads.

    Args:
        rows: of which this is the only user from now on.
        crowded: see `PoolRows.take`; asked whenever rows are given out.
    """

    def __init__(self, rows: PoolRows, crowded: Callable[[], bool] = lambda: False) -> None:
        self._rows, self._crowded = rows, crowded
        self._waiters: List[_Waiter] = []
        self._waits = self._refused = 0
        self._lock = threading.Lock()

    async def take(self, wanted: Sequence[Wanted], wait: bool = True) -> Optional[Lease]:
        """Rows for all images of a request; None where it has to do without.

        Cancelling it takes it out of the queue.

        Args:
            wait: until other sequences have ended, and other requests computed the same images.
        """
        waiter = _Waiter(wanted)
        with self._lock:
            self._waiters.append(waiter)
            self._serve()
            if not waiter.granted.done():
                self._waits += wait
                if not wait:
                    self._waiters.remove(waiter)
                    self._grant(waiter, None)
        try:
            return await asyncio.wrap_future(waiter.granted)
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def computed(self, lease: Lease) -> None:
        """See `PoolRows.computed`."""
        with self._lock:
            self._rows.computed(lease)
            self._serve()

    def give_back(self, lease: Lease) -> None:
        """See `PoolRows.give_back`."""
        with self._lock:
            self._rows.give_back(lease)
            self._serve()

    def computed_elsewhere(self, tokens: int) -> None:
        """See `PoolRows.computed_elsewhere`."""
        with self._lock:
            self._rows.computed_elsewhere(tokens)
            self._serve()

    def figures(self) -> QueueFigures:
        with self._lock:
            return QueueFigures(self._rows.figures(), len(self._waiters), self._waits,
                                self._refused)

    def _serve(self) -> None:
        """Give out what there is, in order. Who waits for a computation is passed by: it has no
        claim on free rows, and is first again when it needs them."""
        still_waiting = []
        for index, waiter in enumerate(self._waiters):
            taken = self._rows.take(waiter.wanted, self._crowded())
            if taken is Refusal.COMPUTING:
                still_waiting.append(waiter)
            elif taken is Refusal.FULL:
                still_waiting += self._waiters[index:]
                break
            else:
                self._grant(waiter, taken if isinstance(taken, Lease) else None)
        self._waiters = still_waiting

    def _grant(self, waiter: _Waiter, lease: Optional[Lease]) -> None:
        self._refused += lease is None
        # cancelled, and on its way to withdraw
        if waiter.granted.set_running_or_notify_cancel():
            waiter.granted.set_result(lease)
        elif lease is not None:
            self._rows.give_back(lease)

    def _withdraw(self, waiter: _Waiter) -> None:
        """Its request is cancelled, maybe after rows were granted but before it heard of that."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.granted.cancelled():
                lease = waiter.granted.result()
                if lease is not None:
                    self._rows.give_back(lease)
            self._serve()
