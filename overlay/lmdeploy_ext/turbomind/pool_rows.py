"""Which rows of the feature pool hold which image. No device in it, no threads, no waiting."""
import enum
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Optional, Sequence, Set, Tuple, Union

from lmdeploy_ext.turbomind.generations import Generations

# an image of a request: its content key, None where nothing is to be found again; its tokens
Wanted = Tuple[Optional[bytes], int]


class Refusal(enum.Enum):
    """Why a request gets no rows.

    Attributes:
        WRITING: another request is writing one of its images.
        FULL: other sequences need too many rows.
        NEVER: it needs more rows than there are, or none will become free: no sequence uses any.
    """
    WRITING = enum.auto()
    FULL = enum.auto()
    NEVER = enum.auto()


@dataclass(eq=False)
class PooledImage:
    """An image in the pool.

    Attributes:
        wanted: key of its content, None for one that is used once; and rows that it fills, tile
            after tile. The last tile may be shorter.
        places: slot and generation of each tile.
        users: leases that name it.
        written: whether its features are in its rows.
        counted: whether its tokens were counted as computed.
        retired: found by nobody any more; its slots are free when its last user ends.
    """
    wanted: Wanted
    places: List[Tuple[int, int]]
    users: int = 0
    written: bool = False
    counted: bool = False
    retired: bool = False

    @property
    def key(self) -> Optional[bytes]:
        return self.wanted[0]

    @property
    def tokens(self) -> int:
        return self.wanted[1]


@dataclass(eq=False)
class Lease:
    """The right of one sequence to name rows.

    Attributes:
        images: in the order of the request, the same one maybe twice.
        fresh: those whose features are yet to be written.
        computed: whether the first token of its sequence came.
    """
    images: List[PooledImage]
    fresh: List[PooledImage] = field(default_factory=list)
    computed: bool = False


@dataclass(frozen=True)
class RowFigures:
    """Counters since the start, and what is there now.

    Attributes:
        rows, rows_in_use: of the pool; of images that sequences name.
        images: in the pool, in use or not.
        hit_images, hit_tokens: of requests, found in the pool.
        loads: images written.
        reuses: slots that were given to another image.
        waits_for_generation: times that a slot was passed over, because KV blocks computed from
            its next ids may be left.
    """
    rows: int
    rows_in_use: int
    images: int
    hit_images: int
    hit_tokens: int
    loads: int
    reuses: int
    waits_for_generation: int


class PoolRows:
    """Images by content in slots of equally many rows, the least recently used out first.

    An image takes a slot for each tile, wherever slots are free: nothing ever has to move, no hole
    is too small, and generations need it (see `generations`).

    Args:
        slots: how many.
        slot_rows: tokens of a tile.
        kv_tokens: see `Generations`.
    """

    def __init__(self, slots: int, slot_rows: int, kv_tokens: Optional[int]) -> None:
        self.slot_rows = slot_rows
        self._slots = slots
        self._generations = Generations(slots, slot_rows, kv_tokens)
        self._free: Deque[int] = deque(range(slots))
        self._used_before: Set[int] = set()
        self._known: Dict[Wanted, PooledImage] = {}
        self._idle: 'OrderedDict[Wanted, PooledImage]' = OrderedDict()
        self._leases = self._in_use = self._images = 0
        self._hits = self._hit_tokens = self._loads = self._reuses = self._passed_over = 0

    def take(self, wanted: Sequence[Wanted]) -> Union[Lease, Refusal]:
        """Rows for all images of a request, or for none. The caller writes the fresh ones before
        it lets the engine see their ids."""
        # an image without a key is like no other, not even in its own request
        marks = [index if image[0] is None else image for index, image in enumerate(wanted)]
        images = dict(zip(marks, wanted))
        found = {mark: self._known[mark] for mark in images if mark in self._known}
        missing = {mark: image for mark, image in images.items() if mark not in found}
        if sum(map(self._slots_of, images.values())) > self._slots:
            return Refusal.NEVER
        if not all(image.written for image in found.values()):
            return Refusal.WRITING
        slots = self._make_room(sum(map(self._slots_of, missing.values())), set(found.values()))
        if slots is None:
            return Refusal.FULL if self._leases else Refusal.NEVER
        fresh = {mark: self._load(image, slots) for mark, image in missing.items()}
        return self._lease([{**found, **fresh}[mark] for mark in marks], list(fresh.values()))

    def written(self, lease: Lease) -> None:
        """The features of its fresh images are in their rows."""
        for image in lease.fresh:
            image.written = True

    def computed(self, lease: Lease) -> None:
        """The first token of the sequence is there, so all KV blocks of its prompt are."""
        lease.computed = True
        for image in set(lease.images):
            if not image.counted:
                image.counted = True
                self._generations.computed(image.tokens)

    def give_back(self, lease: Lease) -> None:
        """The sequence has ended: the engine reads its rows no more.

        If its first token never came, the trie may hold blocks under its ids that were never
        computed (see `prefix_gate`), so the images get other ids when they come again.
        """
        self._leases -= 1
        for image in set(lease.images):
            if not lease.computed:
                self._retire(image)
            image.users -= 1
            if not image.users:
                self._in_use -= len(image.places)
                self._rest(image)

    def computed_elsewhere(self, tokens: int) -> None:
        """A prompt was computed that TurboMind matches with none, since it carries embeddings."""
        self._generations.computed(tokens)

    @property
    def computed_tokens(self) -> int:
        """Of images, computed for the first time since the start."""
        return self._generations.computed_tokens

    def figures(self) -> RowFigures:
        return RowFigures(self._slots * self.slot_rows, self._in_use * self.slot_rows,
                          self._images, self._hits, self._hit_tokens, self._loads, self._reuses,
                          self._passed_over)

    def _slots_of(self, image: Wanted) -> int:
        return math.ceil(image[1] / self.slot_rows)

    def _make_room(self, needed: int, keep: Set[PooledImage]) -> Optional[List[int]]:
        """Slots that were free first, then of images that nobody uses; None if those are too few.
        Nothing is thrown out for a request that does not fit in the end."""
        taken = self._first_usable(needed)
        evicted, count = [], len(taken)
        for image in self._idle.values():
            if count >= needed:
                break
            if image not in keep:
                evicted.append(image)
                count += sum(self._generations.usable(slot, ahead=1) for slot, _ in image.places)
        if count < needed:
            self._free.extendleft(reversed(taken))
            return None
        for image in evicted:
            self._retire(image)
        return taken + self._first_usable(needed - len(taken))

    def _first_usable(self, count: int) -> List[int]:
        """Take as many of the free slots at most."""
        usable, passed_over = [], []
        while self._free and len(usable) < count:
            slot = self._free.popleft()
            (usable if self._generations.usable(slot) else passed_over).append(slot)
        self._free.extend(passed_over)
        self._passed_over += len(passed_over)
        return usable

    def _load(self, wanted: Wanted, slots: List[int]) -> PooledImage:
        places = [(slot, self._generations.begin(slot))
                  for slot in (slots.pop(0) for _ in range(self._slots_of(wanted)))]
        image = PooledImage(wanted, places)
        self._images += 1
        self._loads += 1
        for slot, _ in places:
            self._reuses += slot in self._used_before
            self._used_before.add(slot)
        if image.key is not None:
            self._known[wanted] = image
        return image

    def _lease(self, images: List[PooledImage], fresh: List[PooledImage]) -> Lease:
        lease = Lease(images, fresh)
        self._leases += 1
        for image in set(lease.images):
            if not image.users:
                self._in_use += len(image.places)
                self._idle.pop(image.wanted, None)
            image.users += 1
            if image not in fresh:
                self._hits += 1
                self._hit_tokens += image.tokens
        return lease

    def _rest(self, image: PooledImage) -> None:
        """What becomes of an image without users."""
        if image.key is None or image.retired:
            self._retire(image)
        else:
            self._idle[image.wanted] = image

    def _retire(self, image: PooledImage) -> None:
        """Nobody finds the image any more; free its slots if nobody uses it."""
        if image.key is not None and not image.retired:
            del self._known[image.wanted]
            self._idle.pop(image.wanted, None)
        image.retired = True
        if not image.users:
            self._images -= 1
            for slot, _ in image.places:
                self._generations.end(slot)
                self._free.append(slot)
