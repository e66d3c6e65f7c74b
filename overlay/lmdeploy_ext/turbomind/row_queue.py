"""A pool's rows for many threads and event loops."""
import threading
from dataclasses import dataclass
from typing import Optional, Sequence, Union

from lmdeploy_ext.turbomind.pool_rows import Lease, PoolRows, Refusal, RowFigures, Wanted
from lmdeploy_ext.turbomind.waiting_line import Wait, WaitingLine


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


class RowQueue:
    """Who waits for rows of the pool.

    Args:
        rows: of which this is the only user from now on.
    """

    def __init__(self, rows: PoolRows) -> None:
        self._rows = rows
        self._lock = threading.RLock()
        self._line: WaitingLine[Optional[Lease]] = WaitingLine(self._lock)
        self._refused = 0

    async def take(self, wanted: Sequence[Wanted], wait: bool = True) -> Optional[Lease]:
        """Rows for all images of a request; None where it has to do without.

        Cancelling it takes it out of the queue.

        Args:
            wait: until other sequences have ended; or else None.
        """
        def attempt() -> Union[Lease, Wait, None]:
            taken = self._rows.take(wanted)
            if taken is Refusal.FULL:
                return Wait.AHEAD
            if taken is Refusal.WRITING:
                return Wait.ASIDE
            return None if taken is Refusal.NEVER else taken

        lease = await self._line.wait_for(attempt, self._undo, wait)
        self._refused += lease is None
        return lease

    def written(self, lease: Lease) -> None:
        """See `PoolRows.written`."""
        with self._lock:
            self._rows.written(lease)
            self._line.serve()

    def computed(self, lease: Lease) -> None:
        """See `PoolRows.computed`."""
        with self._lock:
            self._rows.computed(lease)

    def give_back(self, lease: Lease) -> None:
        """See `PoolRows.give_back`."""
        with self._lock:
            self._rows.give_back(lease)
            self._line.serve()

    def computed_elsewhere(self, tokens: int) -> None:
        """See `PoolRows.computed_elsewhere`."""
        with self._lock:
            self._rows.computed_elsewhere(tokens)
            self._line.serve()

    @property
    def computed_tokens(self) -> int:
        """See `PoolRows.computed_tokens`."""
        return self._rows.computed_tokens

    def figures(self) -> QueueFigures:
        with self._lock:
            return QueueFigures(self._rows.figures(), self._line.waiting, self._line.waits,
                                self._refused)

    def _undo(self, lease: Optional[Lease]) -> None:
        if lease is not None:
            self._rows.give_back(lease)
