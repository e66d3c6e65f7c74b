"""So many images in work at a time, first come, first served, over threads and event loops."""
import asyncio
import threading
import weakref
from collections import deque
from typing import Deque, List, Optional


class Place:
    """Room for one image; free again when `free` is called or nobody holds it any more."""

    def __init__(self, admission: 'Admission') -> None:
        self._finalizer = weakref.finalize(self, admission.give_back, 1)
        self._finalizer.atexit = False

    def free(self) -> None:
        """Let the next image in; again, it does nothing."""
        self._finalizer()


class _Waiter:
    """A request that waits for its places, on the event loop that runs now.

    Attributes:
        wanted: how many.
        admitted: it has them, unless it left before.
        left: it does not want them any more.
        awakened: done when they are there.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.admitted = self.left = False
        self._loop = asyncio.get_running_loop()
        self.awakened: 'asyncio.Future[None]' = self._loop.create_future()
        self._undecided = [None]

    def admit(self) -> bool:
        """Give it its places, if somebody still waits for them; from any thread."""
        # said before it is decided: who leaves right after reads it, to give the places back
        self.admitted = True
        if not self._decide():
            return False
        try:
            self._loop.call_soon_threadsafe(self._awaken)
        except RuntimeError:  # the event loop is closed
            self.admitted = False
        return self.admitted

    def leave(self) -> bool:
        """Stop waiting; whether it has been admitted before."""
        self.left = self._decide()
        return self.admitted and not self.left

    def _decide(self) -> bool:
        """Whether this is the first call: what a lock would do, where none may be waited for."""
        try:
            self._undecided.pop()
        except IndexError:
            return False
        return True

    def _awaken(self) -> None:
        if not self.awakened.done():
            self.awakened.set_result(None)


class Admission:
    """A fixed number of places, handed out in the order in which they are asked for.

    A request gets all of its places at once, so that no two requests each hold a part of what
    both need.

    Args:
        places: how many there are, at least 1.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = places
        self._waiting: Deque[_Waiter] = deque()
        self._lock = threading.Lock()
        # Places may be given back by the garbage collector, in any thread, also in one that holds
        # the lock. So they go here first, and nobody who gives back waits for the lock.
        self._returned: Deque[int] = deque()

    async def enter(self, images: int) -> List[Place]:
        """Wait for a place for each image of a request.

        Args:
            images: how many; a request with more than there are places waits for all places, and
                its other images need none.

        Returns:
            at most `places` places.
        """
        wanted = min(images, self.places)
        waiter = self._take_or_wait(wanted)
        self._settle()
        if waiter is not None:
            try:
                await waiter.awakened
            except BaseException:  # cancelled, or its event loop is gone
                # if it leaves nothing behind, those after it may fit in all the same
                self.give_back(wanted if waiter.leave() else 0)
                raise
        return [Place(self) for _ in range(wanted)]

    def give_back(self, places: int) -> None:
        """Make places free, from any thread, at any time."""
        self._returned.append(places)
        self._settle()

    def _take_or_wait(self, wanted: int) -> Optional[_Waiter]:
        """Take places, or stand in the queue for them."""
        with self._lock:
            if not self._waiting and wanted <= self._free:
                self._free -= wanted
                return None
            self._waiting.append(_Waiter(wanted))
            return self._waiting[-1]

    def _settle(self) -> None:
        """Count what was given back, and let in who fits.

        Whoever finds the lock taken leaves the work to its holder, who looks again after letting
        it go.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    self._free += self._returned.popleft()
                self._let_in()
            finally:
                self._lock.release()

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0].left or self._waiting[0].wanted <= self._free):
            waiter = self._waiting.popleft()
            if waiter.admit():
                self._free -= waiter.wanted
