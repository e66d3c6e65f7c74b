"""Greedy answers with log-probabilities, from engines that report them in two ways."""
from typing import Any, Dict

from .errors import ImageError

# TurboMind draws each token with cuRAND's XORWOW generator, freshly seeded for each request, and
# walks down the candidates in order of probability. This seed's first four draws lie below 1/64
# (0.0101, 0.0103, 0.0063, 0.0092), and the best of 64 candidates always has more than that: so
# the first four tokens are the most probable ones. Later ones are drawn.
GREEDY_SEED = 860559
NO_LOGPROBS = (
    'the engine gives no log-probabilities, so labels have none; LMDeploy 0.6 needs '
    'its TurboMind engine, or the patches of lmdeploy-ext (see `make status`), for that')


def sampling(top_logprobs: int, after_top_k: bool) -> Dict[str, Any]:
    """Sampling settings that give the greedy answer and `top_logprobs` log-probabilities a token.

    Args:
        after_top_k: how the engine reports. TurboMind reports only tokens that its top-k has left
            over: with `top_k=1` that is one token of probability 1. So all that are wanted must
            be left over, and the draw be certain (see `GREEDY_SEED`). The PyTorch engine reports
            what the model gave.

    Returns:
        `top_k`, `top_p`, `temperature` and `seed`, by LMDeploy's names in its HTTP API.
    """
    settings = {'top_k': 1, 'top_p': 1.0, 'temperature': 1.0, 'seed': GREEDY_SEED}
    return {**settings, 'top_k': top_logprobs} if after_top_k else settings


def check_finished(finish_reason: str, output_tokens: int) -> None:
    """Check that generation ended with an answer.

    Raises:
        ImageError: it did not.
    """
    if finish_reason == 'error':
        raise ImageError('the engine reported an internal error; its log tells more')
    if output_tokens == 0 and finish_reason == 'length':
        raise ImageError('prompt and image have more tokens than a session may; raise '
                         '--session-len or lower --max-dynamic-patch')
    if output_tokens == 0:
        raise ImageError('the model ended its answer before the first token')
