"""How many prompt tokens came from the cache: in all, and of each request."""
from dataclasses import dataclass
from typing import Any, Tuple


@dataclass(frozen=True)
class PrefixFigures:
    """Counters since the engine started, requests that wait for their turn included.

    Attributes:
        requests: whose prompt was looked up.
        prompt_tokens: of them; of an opened session those that it does not hold already.
        cached_tokens: the ones among these that were not computed. What a preempted sequence
            finds again of its own does not count.
    """
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.


@dataclass
class _Request:
    """A request of a sequence. It may be looked up several times before it is its turn.

    Attributes:
        identity: upstream's sender and request.
        held: tokens that its session held when it came.
        cached: tokens that it got from the cache, by its last look-up.
    """
    identity: Tuple[int, int]
    held: int
    cached: int = 0


class PrefixCounter:
    """Counts look-ups. One thread, the engine's event loop, calls it."""

    def __init__(self) -> None:
        self._requests = self._prompt_tokens = self._cached_tokens = 0

    def looked_up(self, seq: Any, held: int, asked: int) -> None:
        """Count a look-up of a `SchedulerSequence`, which has its new step already.

        Args:
            held: tokens that it held before.
            asked: tokens that it had to compute before.
        """
        identity = (seq.sender_id, seq.req_id)
        request = getattr(seq, 'prefix_request', None)
        if request is None or request.identity != identity:
            request = seq.prefix_request = _Request(identity, held)
            self._requests += 1
            self._prompt_tokens += asked
        elif seq.num_new_tokens:
            return  # it was preempted
        cached = max(0, seq.history_len - request.held)
        self._cached_tokens += cached - request.cached
        request.cached = cached

    def figures(self) -> PrefixFigures:
        """The numbers now."""
        return PrefixFigures(self._requests, self._prompt_tokens, self._cached_tokens)


def cached_tokens(seq: Any) -> int:
    """Prompt tokens of a sequence's present request that came from the cache."""
    request = getattr(seq, 'prefix_request', None)
    return 0 if request is None or request.identity != (seq.sender_id, seq.req_id) else (
        request.cached)
