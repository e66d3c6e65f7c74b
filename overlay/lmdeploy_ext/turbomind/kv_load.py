"""What the engine has in its KV blocks, and for how long what was computed stays there."""
import threading
from dataclasses import dataclass
from typing import Dict, Set

_BLOCK = 64  # tokens; sequences take whole blocks, and one more is on its way


@dataclass(eq=False)
class KvShare:
    """Of one sequence: tokens that it may hold."""
    tokens: int


class KvLoad:
    """Tokens of the sequences that are in the engine. Any thread may ask.

    Args:
        kv_tokens: that the blocks hold at least.
    """

    def __init__(self, kv_tokens: int) -> None:
        self._kv_tokens = kv_tokens
        self._tokens = self._admitted = 0
        self._shares: Dict[KvShare, None] = {}  # by arrival
        self._lock = threading.Lock()

    def begin(self, tokens: int) -> KvShare:
        """A sequence of so many tokens enters."""
        share = KvShare(0)
        with self._lock:
            self._shares[share] = None
        self.grow(share, tokens + _BLOCK)
        return share

    def grow(self, share: KvShare, tokens: int) -> None:
        """It has so many more."""
        with self._lock:
            share.tokens += tokens
            self._tokens += tokens
            self._admitted += tokens

    def end(self, share: KvShare) -> None:
        """It has ended. Its blocks are still there: whoever asks `trusted_until` of them does so
        before."""
        with self._lock:
            self._tokens -= share.tokens
            del self._shares[share]

    def trusted_until(self) -> int:
        """For `trusts`, what to remember of blocks that are computed, or used, now.

        TurboMind evicts the blocks that were used least recently: these stay at least until the
        sequences that are in the engine, and what comes afterwards, may hold more tokens together
        than there is room for.
        """
        with self._lock:
            return self._kv_tokens + self._admitted - self._tokens

    def trusts(self, until: int) -> bool:
        """Whether these blocks are still there."""
        return self._admitted <= until

    def never_preempted(self) -> Set[KvShare]:
        """Sequences whose blocks are never evicted before their end: only those that came earlier
        take blocks from one that runs (SequenceManager.cc, Transaction), and together with it
        they do not need more than there are."""
        kept, tokens = set(), 0
        with self._lock:
            for share in self._shares:
                tokens += share.tokens
                if tokens > self._kv_tokens:
                    break
                kept.add(share)
        return kept
