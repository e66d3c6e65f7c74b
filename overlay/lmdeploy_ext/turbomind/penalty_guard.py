"""Virtual tokens and repetition penalties are never in TurboMind at the same time.

Where any request of a batch has a repetition penalty, its kernel goes over the prompts of all of
them and reads and writes `logits[id]` for every id (LogitsProcessorLayer.cc,
batchApplyRepetitionPenalty, in 0.6.0 to 0.6.4 the same). The only check of the id is an assert,
which a release build leaves out. A virtual token's id is far behind the logits: that would be
memory of something else, or none.

(The kernel that skips ids from vocab_size on is another one, applyRepetitionPenalty; nobody calls
it.)
"""
import threading
from concurrent.futures import Future
from typing import List


class PenaltyGuard:
    """Who may enter the engine. A request with a penalty waits for those with virtual tokens to
    end; from then on, requests with images take the stock path, whose ids are in the vocabulary,
    until no request with a penalty is left. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._virtual = self._penalised = 0
        self._waiting: 'List[Future[None]]' = []

    def enter_virtual(self) -> bool:
        """Whether a request may go in with virtual tokens; if so, `leave_virtual` must follow."""
        with self._lock:
            if self._penalised:
                return False
            self._virtual += 1
            return True

    def leave_virtual(self) -> None:
        """The engine has ended the sequence."""
        with self._lock:
            self._virtual -= 1
            if not self._virtual:
                self._let_in()

    def enter_penalised(self) -> 'Future[None]':
        """Done when a request with a penalty may go in; `leave_penalised` must follow, also where
        it is given up before."""
        entered: 'Future[None]' = Future()
        with self._lock:
            self._penalised += 1
            self._waiting.append(entered)
            if not self._virtual:
                self._let_in()
        return entered

    def leave_penalised(self) -> None:
        """The engine has ended the sequence, or never saw it."""
        with self._lock:
            self._penalised -= 1

    def _let_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for entered in waiting:
            if entered.set_running_or_notify_cancel():
                entered.set_result(None)
