"""A random prompt is sent down the stock path and with virtual tokens, before users do so."""
import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, Optional

import torch

from lmdeploy_ext.turbomind.passage import Prompt
from lmdeploy_ext.turbomind.virtual_tokens import Entry, VirtualTokens

_BEFORE, _IMAGE, _AFTER = 150, 300, 20  # tokens: whole blocks of text, of both, and of the image
_LIKELIEST = 8
# Of log-probabilities among the likeliest tokens: prefill cuts a prompt with a cached prefix into
# other pieces, whose sums differ in the last bits of bfloat16 (2^-8 of logits of about 10).
_TOLERANCE = 0.1
_FIRST_SESSION = 1 << 62  # LMDeploy counts its own from 1

LogProbabilities = Dict[int, float]


class SelfTestFailed(Exception):
    """What a virtual token did otherwise than it should."""


def check_virtual_tokens(engine: Any, tokens: VirtualTokens, hidden: int) -> None:
    """Compare the next token's log-probabilities after one prompt: stock path, virtual tokens,
    virtual tokens with the prefix cached; and after a prompt with another image, which must
    differ.

    Args:
        engine: upstream's `TurboMind`, with nothing else to do.

    Raises:
        SelfTestFailed: they are not what they should be.
    """
    needed = _BEFORE + _IMAGE + _AFTER + 1
    if engine.session_len < needed:
        raise SelfTestFailed(f'session_len is {engine.session_len}, but the self-test needs '
                             f'{needed} tokens; make it larger')
    rng = torch.Generator().manual_seed(0)
    sessions = iter(range(_FIRST_SESSION, _FIRST_SESSION + 9))
    text = torch.randint(3, engine.config.model_config.vocab_size, (_BEFORE + _AFTER, ),
                         generator=rng).tolist()
    images = [random_features(_IMAGE, hidden, rng).half() for _ in range(2)]
    for index, image in enumerate(images):
        image.feature_key = b'self-test %d' % index
    prompts = [Prompt(text[:_BEFORE] + [0] * _IMAGE + text[_BEFORE:], [image],
                      [[_BEFORE, _BEFORE + _IMAGE]]) for image in images]
    stock = [_stock(engine, prompt, next(sessions)) for prompt in prompts]
    if distance(*stock) <= _TOLERANCE:
        raise SelfTestFailed('the self-test cannot tell two random images apart on the stock path')
    for time in ('first', 'second'):
        for image, prompt in enumerate(prompts):
            got = _virtual(engine, tokens, prompt, sessions)
            if got is None:
                raise SelfTestFailed('the self-test gets no rows of the pool; make it larger')
            if distance(got, stock[image]) > _TOLERANCE:
                raise SelfTestFailed(
                    f'the {time} answer with virtual tokens differs from the stock path: '
                    f'log-probabilities {got}, expected {stock[image]} (within {_TOLERANCE})')


def random_features(tokens: int, hidden: int, rng: torch.Generator) -> torch.Tensor:
    """An image that any model can tell from others: what its rows have in common is left where
    attention takes their mean.

    Returns:
        float32 [tokens, hidden], on the generator's device.
    """
    common, own = (torch.randn(rows, hidden, generator=rng, device=rng.device)
                   for rows in (1, tokens))
    return common + own / 2


def distance(one: LogProbabilities, other: LogProbabilities) -> float:
    """The largest difference of log-probabilities, of the tokens that both name: they need not be
    all the same, the least likely change places easily. Infinite if fewer than half are."""
    common = set(one) & set(other)
    if 2 * len(common) < min(len(one), len(other)) or not common:
        return math.inf
    return max(abs(one[token] - other[token]) for token in common)


def _stock(engine: Any, prompt: Prompt, session: int) -> LogProbabilities:
    return _next_token(engine, prompt, session)


def _virtual(engine: Any, tokens: VirtualTokens, prompt: Prompt,
             sessions: Iterator[int]) -> Optional[LogProbabilities]:
    session = next(sessions)
    entry = Entry(session, penalised=False, starts=True, whole=True, output_tokens=1)
    # an engine may be made where an event loop runs
    with ThreadPoolExecutor(1) as thread:
        passage = thread.submit(asyncio.run, tokens.admit(prompt, entry)).result()
    try:
        if passage.prompt.embeddings is not None:
            return None
        got = _next_token(engine, passage.prompt, session)
        passage.computed()
        return got
    finally:
        passage.end()


def _next_token(engine: Any, prompt: Prompt, session: int) -> LogProbabilities:
    """Log-probabilities of the likeliest tokens after a prompt, among these."""
    from lmdeploy.messages import GenerationConfig
    config = GenerationConfig(max_new_tokens=1, top_k=_LIKELIEST, top_p=1.0, temperature=1.0,
                              random_seed=0, ignore_eos=True, logprobs=_LIKELIEST)
    # upstream converts these lists in place
    embeddings = None if prompt.embeddings is None else list(prompt.embeddings)
    ranges = None if prompt.ranges is None else list(prompt.ranges)
    outputs = list(engine.create_instance().stream_infer(
        session, prompt.ids, input_embeddings=embeddings, input_embedding_ranges=ranges,
        sequence_start=True, sequence_end=True, gen_config=config))
    if not outputs or not outputs[-1].logprobs:
        raise SelfTestFailed(f'the engine answers a random prompt with {outputs}; expected a '
                             'token and log-probabilities')
    return outputs[-1].logprobs[0]
