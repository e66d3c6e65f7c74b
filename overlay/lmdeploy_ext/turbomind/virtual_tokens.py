"""Requests enter TurboMind with virtual tokens where that is safe, else as upstream sends them."""
import asyncio
import logging
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence

import torch

from lmdeploy_ext.turbomind.feature_pool import FeaturePool
from lmdeploy_ext.turbomind.kv_load import KvLoad
from lmdeploy_ext.turbomind.passage import Passage, Prompt
from lmdeploy_ext.turbomind.penalty_guard import PenaltyGuard
from lmdeploy_ext.turbomind.pool_rows import Lease
from lmdeploy_ext.turbomind.prefix_gate import PrefixGate, Ticket
from lmdeploy_ext.turbomind.row_queue import QueueFigures, RowQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VirtualTokenFigures:
    """Counters since the start.

    Attributes:
        virtual, stock: requests with images, by the way that they took.
        penalties: requests with a repetition penalty.
        prefix_waits: requests that waited for another to compute what they begin with.
    """
    queue: QueueFigures
    virtual: int
    stock: int
    penalties: int
    prefix_waits: int


@dataclass(frozen=True)
class Entry:
    """What decides a request's way, beside its prompt.

    Attributes:
        session: its id, or those of a batch.
        penalised: whether it has a repetition penalty.
        starts: whether its sequence begins with it: TurboMind looks for cached prefixes then.
        whole: whether it ends with it, too. A session that stays open takes the stock
            path: its rows could not be given back for as long as its client likes, TurboMind
            looks for cached prefixes at a session's start only, and with ids of rows in its
            history no later turn could have a repetition penalty.
        output_tokens: at most.
    """
    session: Hashable
    penalised: bool
    starts: bool
    whole: bool
    output_tokens: int


class VirtualTokens:
    """Of one TurboMind engine; any number of event loops and threads may use it.

    Args:
        pool: rows that ids name.
        queue: who may use them.
        keyed: whether an image that comes again has its rows, and KV blocks, again; else only
            text in front of a prompt's first image is reused.
        wait: for rows while the pool is full; else the stock path is taken.
        load: what is in the engine; `gate` asks it.
        gate: keeps prompts from KV blocks that are not computed yet.
        most_tokens: of a prompt; None for any number. The keys of longer ones depend on their
            length (dynamic NTK scaling), which TurboMind's trie does not know.
        block_tokens: of a KV block; whole ones are matched.
    """

    def __init__(self, pool: FeaturePool, queue: RowQueue, keyed: bool, wait: bool, load: KvLoad,
                 gate: PrefixGate, most_tokens: Optional[int] = None,
                 block_tokens: int = 64) -> None:
        self._pool, self._queue, self._keyed, self._wait = pool, queue, keyed, wait
        self._load, self._gate, self._most_tokens = load, gate, most_tokens
        self._block_tokens = block_tokens
        self.guard = PenaltyGuard()
        self._lock = threading.Lock()
        self._passages: Dict[Hashable, Passage] = {}
        self._counts: Counter[str] = Counter()  # under the lock, as are passages

    async def admit(self, prompt: Prompt, entry: Entry) -> Passage:
        """Wait until a request may enter; `end` or `end_with` of the result must follow.

        Args:
            prompt: with embeddings as tensors on any device, or as numpy arrays.
        """
        if entry.penalised:
            return await self._penalised(prompt, entry)
        if entry.whole and self._fits(prompt):
            passage = await self._named(prompt, entry)
            if passage is not None:
                return passage
        return await self._stocked(prompt, entry)

    def cancelled(self, session: Hashable) -> None:
        """Somebody asks the engine to stop a session's sequence."""
        passage = self._passages.get(session)
        if passage is not None:
            passage.cancelled()

    def figures(self) -> VirtualTokenFigures:
        return VirtualTokenFigures(self._queue.figures(), self._counts['virtual'],
                                   self._counts['stock'], self._counts['penalties'],
                                   self._gate.waits)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def _fits(self, prompt: Prompt) -> bool:
        if self._most_tokens is not None and len(prompt.ids) > self._most_tokens:
            return False
        embeddings, ranges = prompt.embeddings or (), prompt.ranges or ()
        # upstream's own encoders give numpy arrays; some of their models need more than embeddings
        return (len(embeddings) == len(ranges) > 0
                and all(isinstance(features, torch.Tensor)
                        and features.shape == (end - begin, self._pool.hidden)
                        for features, (begin, end) in zip(embeddings, ranges)))

    async def _named(self, prompt: Prompt, entry: Entry) -> Optional[Passage]:
        """A request whose ids name the rows of its images; None where it has to do without."""
        wanted = [(getattr(features, 'feature_key', None) if self._keyed else None, len(features))
                  for features in prompt.embeddings]
        lease = await self._queue.take(wanted, self._wait)
        if lease is None:
            return None
        if not self.guard.enter_virtual():
            self._queue.give_back(lease)
            return None
        ticket = None
        try:
            if await self._write(lease, prompt.embeddings):
                ids = self._ids(prompt, lease)
                ticket = await self._gate.wait_to_enter(ids)
        finally:
            if ticket is None:
                self._leave(lease)
        if ticket is None:
            return None
        self._count('virtual')
        return self._passage(entry, Prompt(ids), ticket, lambda: self._queue.computed(lease),
                             lambda: self._leave(lease))

    async def _write(self, lease: Lease, embeddings: Sequence[torch.Tensor]) -> bool:
        """Whether the features are in their rows."""
        # the same image twice is written once
        fresh = {image: features for image, features in zip(lease.images, embeddings)
                 if image in lease.fresh}
        try:
            await self._pool.write(list(fresh.items()))
        except RuntimeError as error:
            logger.warning('image features cannot be written to the pool (%s); this request takes '
                           'the stock path', error)
            return False
        self._queue.written(lease)
        return True

    def _ids(self, prompt: Prompt, lease: Lease) -> List[int]:
        ids = list(prompt.ids)
        for image, (begin, end) in zip(lease.images, prompt.ranges):
            ids[begin:end] = self._pool.ids_of(image)
        return ids

    def _leave(self, lease: Lease) -> None:
        self.guard.leave_virtual()
        self._queue.give_back(lease)

    async def _penalised(self, prompt: Prompt, entry: Entry) -> Passage:
        self._count('penalties')
        entered = self.guard.enter_penalised()
        try:
            await asyncio.wrap_future(entered)
            return await self._stocked(prompt, entry, self.guard.leave_penalised)
        except BaseException:  # cancelled while it waits
            self.guard.leave_penalised()
            raise

    async def _stocked(self, prompt: Prompt, entry: Entry,
                       leave: Callable[[], None] = lambda: None) -> Passage:
        """A request as upstream sends it."""
        if prompt.embeddings:
            self._count('stock')
            prompt = replace(prompt, embeddings=await in_host_memory(prompt.embeddings))
        image_tokens = sum(end - begin for begin, end in prompt.ranges or ())
        ticket = None
        if entry.starts and not image_tokens:
            # where blocks are spoiled there is no other way: upstream would match them, too
            ticket = await self._gate.wait_to_enter(prompt.ids)

        def computed() -> None:
            if entry.starts and image_tokens:
                self._queue.computed_elsewhere(image_tokens)

        return self._passage(entry, prompt, ticket, computed, leave)

    def _passage(self, entry: Entry, prompt: Prompt, ticket: Optional[Ticket],
                 computed: Callable[[], None], leave: Callable[[], None]) -> Passage:
        share = self._load.begin(len(prompt.ids)) if ticket is None else ticket.share

        def on_computed() -> None:
            computed()
            if ticket is not None:
                self._gate.computed(ticket)

        def on_end() -> None:
            with self._lock:
                if self._passages.get(entry.session) is passage:
                    del self._passages[entry.session]
            leave()
            if ticket is None:
                self._load.end(share)
            else:
                self._gate.leave(ticket)

        # the first of several tokens: somebody may wait for what this request computes
        reports_early = bool(ticket and ticket.owned) and entry.output_tokens != 1
        passage = Passage(prompt, on_computed, on_end,
                          lambda tokens: self._load.grow(share, tokens), reports_early,
                          self._cached_tokens(prompt, entry, ticket))
        with self._lock:
            self._passages[entry.session] = passage
        return passage

    def _cached_tokens(self, prompt: Prompt, entry: Entry,
                       ticket: Optional[Ticket]) -> Optional[int]:
        """Tokens of the prompt that are not computed, at least; None where TurboMind may find
        blocks that nobody here knows of."""
        if ticket is not None:
            known = min(ticket.found, len(prompt.ids) - 1)  # one token at least is computed
            return max(0, known) // self._block_tokens * self._block_tokens
        return None if entry.starts and not prompt.ranges else 0


async def in_host_memory(embeddings: Optional[Sequence[Any]]) -> Optional[List[Any]]:
    """Embeddings as TurboMind's C++ reads them. Copies from a GPU wait for it, so another thread
    does them."""
    if embeddings is None:
        return None
    loop = asyncio.get_running_loop()
    return [await loop.run_in_executor(None, features.cpu)
            if isinstance(features, torch.Tensor) and features.is_cuda else features
            for features in embeddings]
