"""The way of a request through TurboMind: with virtual tokens, with embeddings, with neither."""
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence


@dataclass(frozen=True)
class Prompt:
    """What TurboMind is given.

    Attributes:
        ids: token ids; at an image's positions any id, or virtual ones.
        embeddings: of each image [tokens, hidden]; None without images, or where ids name them.
        ranges: positions [begin, end) of each image.
    """
    ids: List[int]
    embeddings: Optional[Sequence[Any]] = None
    ranges: Optional[Sequence[Sequence[int]]] = None


class Passage:
    """From the time when a request may enter the engine until the engine has ended its sequence.

    Args:
        prompt: to send.
        on_computed: called once, when the first token is there.
        on_end: called once, when the engine reads the request's rows no more.
        on_growth: called with the number of tokens that came since the last time.
        reports_early: whether somebody waits for the first token.
        cached_tokens: of the prompt, that TurboMind has in its KV blocks, at least; None where
            nothing can be said.
    """

    def __init__(self, prompt: Prompt, on_computed: Callable[[], None],
                 on_end: Callable[[], None], on_growth: Callable[[int], None],
                 reports_early: bool = False, cached_tokens: Optional[int] = None) -> None:
        self.prompt, self.reports_early = prompt, reports_early
        self.cached_tokens = cached_tokens
        self._on_growth, self._tokens = on_growth, 0
        self._on_computed, self._on_end = on_computed, on_end
        self._computed = self._cancelled = self._ended = False
        self._lock = threading.Lock()

    def got(self, tokens: int) -> None:
        """So many tokens of the answer are there."""
        if tokens > self._tokens:
            self._on_growth(tokens - self._tokens)
            self._tokens = tokens
            self.computed()

    def computed(self) -> None:
        """A token came. After a cancellation it need not have come from this request: TurboMind
        answers with what an earlier one left in the instance's buffers."""
        with self._lock:
            if self._computed or self._cancelled or self._ended:
                return
            self._computed = True
        self._on_computed()

    def cancelled(self) -> None:
        """Somebody asked the engine to stop the sequence."""
        with self._lock:
            self._cancelled = True

    def end_with(self, forward: 'Optional[Future[Any]]') -> None:
        """End when the engine's call for this request has returned, which it does when the
        sequence has ended, however that came; at once where it was never made."""
        if forward is None:
            self.end()
        else:
            forward.add_done_callback(lambda _: self.end())

    def end(self) -> None:
        """The engine has ended the sequence."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        self._on_end()
