"""Which tiles go next: fair queueing over requests. No threads, no tensors, no locks in it."""
import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Generic, List, NamedTuple, Optional, Tuple, TypeVar


@dataclass(eq=False)
class Flow:
    """One request, whose images are served in their order. It belongs to one queue.

    Attributes:
        jobs: its images in the queue.
        served: the virtual time up to which it has been served; may be past while it rests.
    """
    jobs: Deque['Job'] = field(default_factory=deque)
    served: int = 0


class Job:
    """The tiles of one image.

    Attributes:
        flow: its request.
        count: of its tiles.
        taken: so many of them, from the first on, have left the queue.
        queued: whether the others are in the queue.
    """

    def __init__(self, flow: Flow, count: int) -> None:
        if count < 1:
            raise ValueError(f'found an image of {count} tiles; expected at least 1; an image '
                             'without tiles has no features to compute')
        self.flow, self.count = flow, count
        self.taken = 0
        self.queued = False


J = TypeVar('J', bound=Job)


@dataclass(frozen=True)
class Part(Generic[J]):
    """Tiles `first` to `last`, the latter not included, of an image."""
    job: J
    first: int
    last: int


class _Packet(NamedTuple):
    """Tiles of an image that are served in one go: up to tile `end`, not included."""
    job: Job
    end: int


class TileQueue(Generic[J]):
    """Images that wait, served by self-clocked fair queueing (Golestani, INFOCOM 1994).

    An image is served in packets of at most `packet_tiles`. A packet's tag is its number of tiles
    more than its flow's last one, or, if the flow had nothing to do, than the virtual time, which
    is the tag of the packet that was begun last. The smallest tag goes first, of equal tags the
    one that has waited longer, and what was begun is finished: a batch that ends inside a packet
    goes on in the next. So

    - flows that always have work differ by one packet in what they got at most;
    - an image of one tile waits for the rest of a packet, not for that of a large image;
    - before a packet of n tiles of a flow that comes with nothing begun, no other flow gets more
      than `packet_tiles` + n tiles; and requests that come later, if at most w of them wait at
      any time, overtake it n * w times at most: nobody starves.

    Args:
        packet_tiles: at most, in one packet; at least 1. A batch's budget is the right number.
    """

    def __init__(self, packet_tiles: int) -> None:
        if packet_tiles < 1:
            raise ValueError(f'found packets of {packet_tiles} tiles; expected at least 1')
        self._packet_tiles = packet_tiles
        self._now = 0  # virtual time
        self._begun: Optional[_Packet] = None
        # (tag, number of the entry, flow) of each flow that waits to begin a packet
        self._ready: List[Tuple[int, int, Flow]] = []
        self._numbers = itertools.count()
        self._waiting_tiles = 0

    @property
    def waiting_tiles(self) -> int:
        """In the queue."""
        return self._waiting_tiles

    def put(self, job: J) -> None:
        """Append an image to its flow.

        Raises:
            ValueError: it has been in a queue before.
        """
        if job.queued or job.taken:
            raise ValueError(f'found an image that was put before, {job.taken} of its {job.count} '
                             'tiles taken; expected a new one; make a Job for each time')
        flow = job.flow
        flow.jobs.append(job)
        job.queued = True
        self._waiting_tiles += job.count
        if len(flow.jobs) == 1:
            flow.served = max(flow.served, self._now)
            self._make_ready(flow)

    def take(self, budget: int) -> List[Part[J]]:
        """Take as many tiles as there are, `budget` at most.

        Returns:
            what was taken, in the order of service; the last image may be a part of one. An image
            whose tiles were not taken in one go comes up more than once.
        """
        parts: List[Part[J]] = []
        while budget > 0 and (self._begun or self._ready):
            job, end = self._begun or self._begin()
            first, job.taken = job.taken, min(job.taken + budget, end)
            budget -= job.taken - first
            self._waiting_tiles -= job.taken - first
            if parts and parts[-1].job is job:
                first = parts.pop().first
            parts.append(Part(job, first, job.taken))
            if job.taken == end:
                self._finish(job)
        return parts

    def remove(self, job: J) -> bool:
        """Remove what is left of an image.

        Returns:
            whether anything was.
        """
        if not job.queued:
            return False
        job.queued = False
        self._waiting_tiles -= job.count - job.taken
        flow = job.flow
        if self._begun and self._begun.job is job:
            self._begun = None
            next_was_chosen = True
        else:
            next_was_chosen = flow.jobs[0] is job
            if next_was_chosen:
                self._ready = [entry for entry in self._ready if entry[2] is not flow]
                heapq.heapify(self._ready)
        flow.jobs.remove(job)
        if next_was_chosen and flow.jobs:
            self._make_ready(flow)
        return True

    def _next_packet(self, flow: Flow) -> _Packet:
        job = flow.jobs[0]
        return _Packet(job, min(job.count, job.taken + self._packet_tiles))

    def _make_ready(self, flow: Flow) -> None:
        job, end = self._next_packet(flow)
        tag = flow.served + end - job.taken
        heapq.heappush(self._ready, (tag, next(self._numbers), flow))

    def _begin(self) -> _Packet:
        self._now, _, flow = heapq.heappop(self._ready)
        flow.served = self._now
        self._begun = self._next_packet(flow)
        return self._begun

    def _finish(self, job: Job) -> None:
        self._begun = None
        flow = job.flow
        if job.taken == job.count:
            job.queued = False
            flow.jobs.popleft()
        if flow.jobs:
            self._make_ready(flow)
