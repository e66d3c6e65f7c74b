"""What one request of the PyTorch engine found in the prefix cache."""
from typing import Any, Optional

from .cache import prefix_cache_of


class SentRequest:
    """A request, known by who sends it.

    Sequences of a session are used again, by its next request or after a cancellation; what they
    say counts only where it is about this one.

    Args:
        instance: upstream's `EngineInstance` that is about to send it; it runs one at a time.
        session_id: that it is sent for.
    """

    def __init__(self, instance: Any, session_id: int) -> None:
        sender = instance.req_sender
        self._scheduler, self._session_id = instance.engine.scheduler, session_id
        self._sender_id, self._first = sender.sender_id, sender._next_req_id

    def cached_tokens(self) -> Optional[int]:
        """Prompt tokens that were not computed. It does not change from the first output on.

        Returns:
            None where that is not known: the request is not looked up yet, its session is gone, or
            upstream's own cache answers.
        """
        trie = self._scheduler.block_trie
        if not trie.enable:
            return 0
        if not getattr(trie.match, 'tells_images_apart', False):
            return None
        if prefix_cache_of(trie).mode == 'off':
            return 0
        session = self._scheduler.sessions.get(self._session_id)
        if session is None:
            return None
        # a copy: another thread may run the engine
        for seq in list(session.sequences.values()):
            request = getattr(seq, 'prefix_request', None)
            if request is not None and self._is_mine(*request.identity):
                return request.cached
        return None

    def _is_mine(self, sender_id: int, request_id: int) -> bool:
        return sender_id == self._sender_id and request_id >= self._first
