"""What the engine has in its KV blocks, and for how long what was computed stays there."""
import threading

_BLOCK = 64  # tokens; sequences take whole blocks


class KvLoad:
    """Tokens of the sequences that are in the engine. Any thread may ask.

    TurboMind evicts the blocks that were used least recently. Those that are computed now stay at
    least until the sequences in the engine and those that come afterwards may hold more tokens
    together than there is room for. While that is not so, no sequence is preempted either.

    Args:
        kv_tokens: that the blocks hold at least.
    """

    def __init__(self, kv_tokens: int) -> None:
        self._kv_tokens = kv_tokens
        self._tokens = self._admitted = 0
        self._lock = threading.Lock()

    def begin(self, tokens: int) -> None:
        """A sequence enters that may grow to so many tokens."""
        with self._lock:
            self._tokens += tokens + _BLOCK
            self._admitted += tokens + _BLOCK

    def end(self, tokens: int) -> None:
        """It has ended. Its blocks are still there: whoever asks `trusted_until` of them does so
        before."""
        with self._lock:
            self._tokens -= tokens + _BLOCK

    def trusted_until(self) -> int:
        """For `trusts`, what to remember of blocks that are computed, or used, now."""
        with self._lock:
            return self._kv_tokens + self._admitted - self._tokens

    def trusts(self, until: int) -> bool:
        """Whether these blocks are still there."""
        return self._admitted <= until
