"""No prompt relies on KV blocks that are not computed yet.

TurboMind puts all blocks of a prompt into its trie when the first chunk of the prompt is computed
(LlamaBatch.cc, Finish calls CacheIfEnabled for the partial sequence, too). A prompt that begins
with the same blocks and comes before the other chunks matches them all the same, and reads what
was in that memory before: keys and values of somebody else. So where two prompts begin with the
same blocks, the second waits for the first token of the first. If that never comes, since the
request was cancelled, its blocks are left alone until they must have been evicted.
"""
import hashlib
import threading
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Set, Union

import numpy as np

from lmdeploy_ext.turbomind.kv_load import KvLoad, KvShare
from lmdeploy_ext.turbomind.waiting_line import Wait, WaitingLine

_BLOCK = 64
_MANY = 1 << 16  # parts to remember before those of no more use are dropped


@dataclass(eq=False)
class Ticket:
    """A prompt in the engine.

    Attributes:
        parts: its beginnings of 1, 2, … whole blocks.
        owned: those that it computes, alone.
        found: tokens at its start that are in blocks already, for certain.
        computed: whether its first token came.
        share: of its sequence.
    """
    parts: List[bytes]
    share: KvShare
    owned: List[bytes] = field(default_factory=list)
    found: int = 0
    computed: bool = False


@dataclass
class _Part:
    """A beginning of prompts.

    Attributes:
        owner: computes it now.
        users: whose sequences have its blocks, matched or computed.
        trusted_until: see `KvLoad.trusted_until`.
        spoiled_at: when its owner ended without having computed it.
    """
    owner: Optional[Ticket] = None
    users: Set[Ticket] = field(default_factory=set)
    trusted_until: int = -1
    spoiled_at: Optional[int] = None


class PrefixGate:
    """Who may begin, given what the others compute. Any thread may ask.

    Args:
        load: knows for how long computed blocks stay.
        kv_tokens: at least as many as the engine's blocks hold.
        computed_tokens: so far, that were in no block before; see `Generations`.
    """

    def __init__(self, load: KvLoad, kv_tokens: int,
                 computed_tokens: Callable[[], int]) -> None:
        self._load, self._kv_tokens, self._computed_tokens = load, kv_tokens, computed_tokens
        self._lock = threading.RLock()
        self._line: WaitingLine[Optional[Ticket]] = WaitingLine(self._lock)
        self._parts: Dict[bytes, _Part] = {}

    async def wait_to_enter(self, ids: Sequence[int]) -> Optional[Ticket]:
        """Wait until nobody computes any block that a prompt begins with.

        Returns:
            None where blocks may be in the trie that were never computed.
        """
        parts = parts_of(ids)
        return await self._line.wait_for(lambda: self.enter(parts, len(ids)), self._undo)

    def enter(self, parts: List[bytes], tokens: int) -> Union[Ticket, Wait, None]:
        """The same at once."""
        with self._lock:
            known = [self._parts[part] for part in parts if part in self._parts]
            if any(part.owner is not None for part in known):
                return Wait.ASIDE
            if any(map(self._spoiled, known)):
                return None
            entries = [self._parts.setdefault(part, _Part()) for part in parts]
            kept = self._load.never_preempted()
            there = [self._is_there(entry, kept) for entry in entries]
            ticket = Ticket(parts, self._load.begin(tokens))
            for part, entry, is_there in zip(parts, entries, there):
                if is_there:
                    if not ticket.owned:
                        ticket.found += _BLOCK
                    entry.users.add(ticket)
                else:
                    entry.owner = ticket
                    ticket.owned.append(part)
            self._forget_useless()
            return ticket

    def computed(self, ticket: Ticket) -> None:
        """The first token came."""
        with self._lock:
            ticket.computed = True
            self._trust(ticket)
            for part in ticket.owned:
                self._parts[part].owner = None
                self._parts[part].users.add(ticket)
            self._line.serve()

    def leave(self, ticket: Ticket) -> None:
        """The engine has ended the sequence."""
        with self._lock:
            if ticket.computed:
                self._trust(ticket)
            else:
                for entry in (self._parts[part] for part in ticket.owned):
                    entry.owner, entry.trusted_until = None, -1
                    entry.spoiled_at = self._computed_tokens()
            self._forget(ticket)
            self._line.serve()

    @property
    def waits(self) -> int:
        """Requests that had to wait."""
        return self._line.waits

    def _is_there(self, part: _Part, kept: Set[KvShare]) -> bool:
        """Whether its blocks cannot have been evicted."""
        return (self._load.trusts(part.trusted_until)
                or any(user.share in kept for user in part.users))

    def _forget(self, ticket: Ticket) -> None:
        self._load.end(ticket.share)
        for part in ticket.parts:
            self._parts[part].users.discard(ticket)

    def _trust(self, ticket: Ticket) -> None:
        until = self._load.trusted_until()
        for part in ticket.parts:
            entry = self._parts[part]
            entry.trusted_until = max(entry.trusted_until, until)

    def _spoiled(self, part: _Part) -> bool:
        return (part.spoiled_at is not None
                and self._computed_tokens() - part.spoiled_at < self._kv_tokens)

    def _forget_useless(self) -> None:
        if len(self._parts) > _MANY:
            self._parts = {key: part for key, part in self._parts.items()
                           if part.owner is not None or part.users or self._spoiled(part)
                           or self._load.trusts(part.trusted_until)}

    def _undo(self, ticket: Optional[Ticket]) -> None:
        """Nobody sent the prompt."""
        if ticket is not None:
            for part in ticket.owned:
                self._parts[part].owner = None
            self._forget(ticket)


def parts_of(ids: Sequence[int]) -> List[bytes]:
    """What a prompt's beginnings of whole blocks are known by."""
    digest, parts = hashlib.blake2b(digest_size=16), []
    data = np.asarray(ids, dtype=np.int32)
    for begin in range(0, len(data) - _BLOCK + 1, _BLOCK):
        digest.update(data[begin:begin + _BLOCK].tobytes())
        parts.append(digest.digest())
    return parts
