"""Upstream's `AsyncEngine` over the stand-in: answers, disconnects, sessions."""
import asyncio
import random
from types import SimpleNamespace

import pytest
from lmdeploy.messages import GenerationConfig
from lmdeploy.serve.async_engine import AsyncEngine

from tests.turbomind.stand_in import SESSION_LEN, StandInEngine
from tests.turbomind.test_streams import a_prompt, all_ended, prompt_of, run


class Tokenizer:
    """Words are numbers."""
    eos_token_id = 2

    def detokenize_incrementally(self, ids, state, skip_special_tokens=True):
        text = ''.join(f' {token}' for token in ids[state.ids_offset:])
        state.ids_offset = len(ids)
        return text, state


class Engine(AsyncEngine):
    """Prompts are (tokens before, images, tokens after)."""

    def __init__(self, engine):
        self.engine, self.tokenizer, self.backend = engine, Tokenizer(), 'turbomind'
        self.backend_config = SimpleNamespace(
            enable_prefix_caching=engine.virtual_tokens is not None)
        self.session_len, self.stop_words = SESSION_LEN, []
        self.id2step, self.id2generator, self.running_session_ids = {}, {}, set()
        self.gens_set = {engine.create_instance() for _ in range(4)}
        self.request_logger = SimpleNamespace(log_prompt=lambda **_: None,
                                              log_inputs=lambda **_: None)

    async def _get_prompt_input(self, prompt, *args, **kwargs):
        return dict(prompt='', **prompt_of(*prompt))


def config(**options):
    config = GenerationConfig(**{**dict(max_new_tokens=4, ignore_eos=True), **options})
    config.convert_stop_bad_words_to_ids = lambda tokenizer: None
    return config


async def text_of(engine, session, prompt, gen_config=None, **options):
    parts = [output.response async for output in engine.generate(
        prompt, session, gen_config or config(), **options)]
    return ''.join(parts)


@pytest.fixture
def engine():
    return Engine(StandInEngine(slots=20, seconds=0.01))


def stock(engine, prompt):
    """Through the same code, without virtual tokens."""
    other = StandInEngine(seconds=0)
    other.memory[:500] = engine.engine.memory[:500]
    return run(text_of(Engine(other), 1, prompt))


def test_answers_are_the_stock_paths(engine):
    prompts = [(64, [7], after) for after in (3, 5)] + [(0, [0, 0], 3), (10, [], 3)]
    expected = [stock(engine, prompt) for prompt in prompts]

    async def test():
        got = await asyncio.gather(*[text_of(engine, number, prompt)
                                     for number, prompt in enumerate(prompts, 1)])
        await all_ended(engine.engine)
        return got

    assert run(test()) == expected
    figures = engine.engine.virtual_tokens.figures()
    assert figures.virtual == 3 and figures.queue.rows.loads == 2


def test_a_client_that_disconnects_leaves_nothing_behind(engine):
    """`safe_run` cancels the session then."""
    async def test():
        stream = engine.generate((0, [7], 3), 1, config(max_new_tokens=200))
        await stream.__anext__()
        assert engine.engine.virtual_tokens.figures().queue.rows.rows_in_use
        await stream.aclose()
        await all_ended(engine.engine)
        assert len(engine.gens_set) == 4
        waiting = asyncio.ensure_future(text_of(engine, 2, (0, [3], 3)))
        await asyncio.sleep(0.012)  # in the first chunk
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await all_ended(engine.engine)
        return await text_of(engine, 3, (0, [7], 3))

    assert run(test()) == stock(engine, (0, [7], 3))


def test_a_penalty_counts_where_upstream_lets_it(engine):
    """Greedy answers have none."""
    async def test():
        await text_of(engine, 1, (0, [0], 3), config(repetition_penalty=1.3))
        greedy = engine.engine.virtual_tokens.figures()
        await text_of(engine, 2, (0, [0], 3), config(repetition_penalty=1.3, do_sample=True))
        return greedy, engine.engine.virtual_tokens.figures()

    greedy, sampled = run(test())
    assert (greedy.virtual, greedy.penalties) == (1, 0)
    assert (sampled.virtual, sampled.stock, sampled.penalties) == (1, 1, 1)


@pytest.mark.parametrize('last, known', [
    ((64, [7], 3), 128),
    ((64, [8], 3), 64),  # another image behind the same text
    ((64, [], 1), 64),
    ((64, [], 0), 0),  # something is computed in any case
    ((0, [7], 3), 0),
])
def test_cached_tokens_are_blocks_that_are_there_for_certain(engine, last, known):
    async def test():
        figures = []
        for number, prompt in enumerate([(64, [7], 5), last], 1):
            outputs = [output async for output in engine.generate(prompt, number, config())]
            figures.append({output.cached_tokens for output in outputs})
            await all_ended(engine.engine)
        return figures

    assert run(test()) == [{0}, {known}]


def test_what_nobody_can_know_is_not_told():
    """Without virtual tokens TurboMind says nothing of what it found in its cache."""
    engine = Engine(StandInEngine(seconds=0))
    engine.backend_config.enable_prefix_caching = True

    async def figures(prompt):
        return {output.cached_tokens async for output in engine.generate(prompt, 1, config())}

    assert run(figures((64, [7], 5))) == {None}
    engine.backend_config.enable_prefix_caching = False
    assert run(figures((64, [7], 5))) == {0}


def test_at_least_the_cached_tokens_that_are_told_were_found():
    """KV blocks are few enough that some are evicted."""
    rng = random.Random(1)
    engine = Engine(StandInEngine(slots=14, blocks=60, seconds=0.001))

    async def one(places, number, prompt):
        async with places:
            async for output in engine.generate(prompt, number, config()):
                told = output.cached_tokens
            return told

    async def test():
        places = asyncio.Semaphore(4)
        told = await asyncio.gather(*[one(places, number, a_prompt(rng)) for number in range(80)])
        await all_ended(engine.engine)
        return told

    told = run(test())
    assert all(least <= engine.engine.matched[number] for number, least in enumerate(told))
    assert sum(least > 0 for least in told) > 20
