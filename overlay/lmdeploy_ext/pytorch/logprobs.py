"""Log-probabilities of the tokens that upstream's PyTorch engine generates.

Upstream ignores `GenerationConfig.logprobs` in this engine. Its logits processors, which a request
may bring along, see each token's raw logits just before it is chosen: one that changes nothing and
takes notes is all it needs, and works in any batch, with chunked prefill and after preemption.
"""
import copy
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch


@dataclass
class _Step:
    """One token about to be chosen.

    Attributes:
        top: ids and log-probabilities of the likeliest tokens, each [count].
        row: log-probabilities of all tokens [vocabulary], until the choice is known.
        chosen: id and log-probability of the choice, each [], once it is known.
    """
    top: Tuple[torch.Tensor, torch.Tensor]
    row: Optional[torch.Tensor]
    chosen: Optional[Tuple[torch.Tensor, torch.Tensor]] = None


class LogprobRecorder:
    """A logits processor that leaves the logits alone and keeps their log-probabilities.

    Args:
        count: how many of the likeliest tokens to keep.
        known_ids: ids below this are candidates for them; those above are padding of the
            vocabulary, which a tokenizer has no name for.
    """

    def __init__(self, count: int, known_ids: int):
        self.count = count
        self.known_ids = known_ids
        self._steps: List[_Step] = []
        self._records: List[Dict[int, float]] = []

    def __deepcopy__(self, memo: dict) -> 'LogprobRecorder':
        """Itself: upstream deep-copies a batch's processors at every step."""
        return self

    def __call__(self, all_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Keep one step.

        Args:
            all_ids: [tokens] so far; the last is what was chosen at the step before.
            logits: [vocabulary], raw.

        Returns:
            the logits.
        """
        if self._steps:
            self._steps[-1] = _settle(self._steps[-1], all_ids[-1])
        row = logits.float().log_softmax(-1)
        candidates = row[:self.known_ids]
        values, ids = candidates.topk(min(self.count, len(candidates)))
        self._steps.append(_Step((ids, values), row))
        return logits

    def records(self, token_ids: List[int]) -> List[Dict[int, float]]:
        """Log-probability by token id, for each generated token: the likeliest and the chosen one.

        Args:
            token_ids: all tokens that the request has got so far.
        """
        for token_id in token_ids[len(self._records):]:
            self._records.append(_record(self._pop_step(token_id), token_id))
        return self._records

    def _pop_step(self, token_id: int) -> _Step:
        """The step that chose the token. Upstream swallows stop tokens: their steps are passed."""
        while True:
            step = self._steps.pop(0)
            if step.chosen is None:
                return _settle(step, step.top[0].new_tensor(token_id))
            if int(step.chosen[0]) == token_id:
                return step


def _settle(step: _Step, chosen: torch.Tensor) -> _Step:
    """The step with its choice, which frees the row of the vocabulary."""
    if step.chosen is not None:
        return step
    # gather, since indexing would wait for a GPU
    return _Step(step.top, None, (chosen, step.row.gather(0, chosen.reshape(1))[0]))


def _record(step: _Step, token_id: int) -> Dict[int, float]:
    ids, values = step.top
    return {**dict(zip(ids.tolist(), values.tolist())), token_id: float(step.chosen[1])}


def record_logprobs(gen_config: Any, engine: Any) -> Tuple[Any, Optional[LogprobRecorder]]:
    """A copy of a generation config that records, and its recorder; the same config and None where
    it asks for no log-probabilities.

    Args:
        gen_config: upstream's `GenerationConfig`, or None.
        engine: upstream's `Engine`.
    """
    if gen_config is None or not gen_config.logprobs:
        return gen_config, None
    recorder = LogprobRecorder(gen_config.logprobs, known_ids=len(engine.tokenizer.model.model))
    gen_config = copy.copy(gen_config)
    gen_config.logprobs = None  # answered: nobody else has to
    gen_config.logits_processors = [recorder, *(gen_config.logits_processors or ())]
    return gen_config, recorder
