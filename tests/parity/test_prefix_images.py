"""Prefix caching with images: every answer is the one without a cache.

Greedy ids are equal, and log-probabilities within 1e-5: float32 sums over the same values, in
batches of other sizes.
"""
import asyncio
import random

import numpy as np
import pytest
from lmdeploy.pytorch.engine.engine import Engine
from lmdeploy.pytorch.messages import HistoryEmbeddings
from lmdeploy.pytorch.paging.block_trie import BlockTrie
from lmdeploy.pytorch.paging.scheduler import Scheduler

from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
from tests.parity.engine import greedy
from tests.parity.prefixes import BLOCK, ask, ask_one, image, prompt_of, text, with_engine

TOLERANCE = 1e-5
TOKENS = 20  # more than a decoding loop of 15 steps
IMAGES = [image(seed, tokens) for seed, tokens in enumerate([32, 32, 24, 24, 7])]
START = text(0, 40)


def draw(chance: random.Random):
    """A prompt of a shared text of a length around a block's, a few of few images, and a question
    of few."""
    parts = [START[:chance.choice([0, 1, 15, 16, 17, 31, 32, 33])]]
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        parts += [chance.choice(IMAGES), text(chance.randrange(3), chance.choice([0, 1, 5, 16]))]
    return prompt_of(*parts, text(100 + chance.randrange(4), chance.choice([1, 2, 9, 16])))


PROMPTS = list(map(draw, [random.Random(1)] * 300))


@pytest.fixture(scope='module')
def expected(checkpoint):
    """Answers without a cache."""
    return ask(checkpoint(), PROMPTS, greedy(TOKENS, logprobs=1), num_gpu_blocks=400)


def check(answers, expected):
    assert [answer.ids for answer in answers] == [answer.ids for answer in expected]
    for answer, other in zip(answers, expected):
        for found, wanted in zip(answer.logprobs, other.logprobs):
            assert found == pytest.approx(wanted, abs=TOLERANCE)


class Watch:
    """Counts what an engine does.

    Attributes:
        overwritten: blocks of the trie that a forward pass wrote.
        preempted, evicted: sequences that lost their blocks, blocks that the trie gave up.
        prefilled: tokens that were computed in prefills.
    """

    def __init__(self):
        self.overwritten = self.preempted = self.evicted = self.prefilled = 0

    def __call__(self, engine):
        self.trie = engine.scheduler.block_trie
        agent, helper = engine.model_agent, engine.scheduler.eviction_helper
        compute, evict, evict_for_seq = agent.logits, self.trie.evict, helper.evict_for_seq

        def logits(inputs, all_positions):
            if not inputs.is_decoding:
                self.prefilled += inputs.input_ids.numel()
            self.overwritten += len(self.written(inputs) & self.known())
            return compute(inputs, all_positions)

        def count_evicted(blocks):
            done = evict(blocks)
            self.evicted += done
            return done

        def count_preempted(seq, others, ahead):
            held = [other for other in others if len(other.logical_blocks)]
            success = evict_for_seq(seq, others, ahead)
            self.preempted += sum(not len(other.logical_blocks) for other in held)
            self.preempted += not success and bool(seq.num_new_tokens)
            return success

        agent.logits, self.trie.evict = logits, count_evicted
        helper.evict_for_seq = count_preempted

    @staticmethod
    def written(inputs):
        """The physical blocks that a forward pass writes."""
        rows = zip(inputs.block_offsets.tolist(), inputs.history_lengths.tolist(),
                   inputs.seq_length.tolist())
        return {table[at // BLOCK] for table, start, count in rows
                for at in range(start, start + count)}

    def known(self):
        """The physical blocks that the trie knows."""
        waiting, blocks = list(self.trie._roots.values()), []
        while waiting:
            children = list(waiting.pop().children.values())
            blocks += [node.block for node in children]
            waiting += children
        return set(self.trie.allocator.get_physical_blocks(np.array(blocks, dtype=int)).tolist())

    @property
    def figures(self):
        return prefix_cache_of(self.trie).figures()


# the longest prompt with its answer takes 15 blocks
@pytest.mark.parametrize('settings', [
    dict(num_gpu_blocks=18, at_once=12),
    dict(num_gpu_blocks=60, at_once=16, max_batch_size=6, prefill_interval=5),
    dict(num_gpu_blocks=400, at_once=6, max_prefill_token_num=32),
], ids=['few blocks', 'some blocks', 'chunks'])
def test_hundreds_of_requests_over_few_images(checkpoint, expected, settings):
    watch = Watch()
    answers = ask(checkpoint(), PROMPTS, greedy(TOKENS, logprobs=1), watch=watch,
                  enable_prefix_caching=True, **settings)
    check(answers, expected)
    assert not watch.overwritten
    few = settings['num_gpu_blocks'] < 100
    assert (watch.evicted > 100 and watch.preempted > 10) == few
    total = sum(len(prompt.ids) for prompt in PROMPTS)
    assert watch.figures.requests == len(PROMPTS) and watch.figures.prompt_tokens == total
    assert watch.figures.hit_rate > (.15 if few else .4)
    if not few:
        assert watch.prefilled == total - watch.figures.cached_tokens


def test_stock_answers_about_other_images(checkpoint, expected, stock):
    """The test above on stock's prefix cache. Seen once, of 300 answers wrong: 27 in few blocks,
    43 in some and 76 in chunks on 0.6.0; 25, 46 and 72 on 0.6.4, by
    `LMDEPLOY_EXT_PATCHES=-block_trie_match,-block_trie_allocate,-create_model_inputs_resume,
    -history_embeddings_get_step,-schedule_prefill_known pytest -k hundreds_of_requests`.
    With no correctness patch at all (`LMDEPLOY_EXT_PATCHES=cpu`) the engine ends in the first of
    them, with the IndexError of an empty trie.
    """
    for owner, name in ((BlockTrie, 'match'), (BlockTrie, 'allocate'),
                        (HistoryEmbeddings, 'get_step'), (Engine, 'create_model_inputs'),
                        (Scheduler, '_schedule_prefill')):
        stock(owner, name)
    answers = ask(checkpoint(), PROMPTS[:100], greedy(TOKENS), num_gpu_blocks=400,
                  enable_prefix_caching=True)
    wrong = sum(answer.ids != other.ids for answer, other in zip(answers, expected))
    assert wrong > 10


def test_an_image_at_every_place_of_a_block(checkpoint):
    """The same image after texts of every length, another one of its size, and another question:
    each is resumed inside the image, or not at all."""
    first, other = IMAGES[:2]
    prompts = [prompt_of(START[:length], picture, text(question, 5))
               for length in range(2 * BLOCK + 2)
               for picture, question in ((first, 1), (first, 2), (other, 1), (first, 1))]
    expected = ask(checkpoint(), prompts, greedy(3, logprobs=1), num_gpu_blocks=400)
    watch = Watch()
    answers = ask(checkpoint(), prompts, greedy(3, logprobs=1), at_once=1, watch=watch,
                  num_gpu_blocks=600, enable_prefix_caching=True)
    check(answers, expected)
    # of every four the second and the fourth find all full blocks before the question, which
    # fills none itself, or one
    least = sum(2 * ((length + len(first)) // BLOCK) * BLOCK for length in range(2 * BLOCK + 2))
    assert least < watch.figures.cached_tokens


@pytest.mark.parametrize('mode, found', [('content', 48), ('text', 16), ('off', 0)])
def test_a_new_question_about_an_image(checkpoint, monkeypatch, mode, found):
    """20 tokens of text and 32 of the image are 3 blocks and 4 tokens."""
    monkeypatch.setenv('LMDEPLOY_EXT_PREFIX_CACHE', mode)
    prompts = [prompt_of(START[:20], IMAGES[0], text(question, 6)) for question in (1, 2)]
    config = greedy(4, logprobs=1)

    async def talk(engine):
        cache, answers, cached = prefix_cache_of(engine.scheduler.block_trie), [], []
        for session, prompt in enumerate(prompts):
            answers.append(await ask_one(engine, session, prompt, config, end=False))
            cached.append(cache.cached_tokens(engine.scheduler.sessions[session]))
        return answers, cached, cache.figures()

    answers, cached, figures = with_engine(checkpoint(), talk, enable_prefix_caching=True)
    check(answers, ask(checkpoint(), prompts, config))
    assert cached == [0, found]
    assert (figures.cached_tokens, figures.prompt_tokens) == (found, 116 if mode != 'off' else 0)


def test_a_prefill_counts_what_is_left_of_prompts(checkpoint):
    """8 prompts of 101 tokens, of which 5 are to compute, in one batch of 128 tokens at most. All
    their tokens would make 8 batches. They know the first prompt, which came right before."""
    prompts = [prompt_of(START + START[:8], IMAGES[0], START[:17], text(question, 4))
               for question in range(9)]
    watch, batches = Watch(), []

    async def talk(engine):
        watch(engine)
        compute = engine.model_agent.logits

        def logits(inputs, all_positions):
            if not inputs.is_decoding:
                batches.append(len(inputs.seq_length))
            return compute(inputs, all_positions)

        engine.model_agent.logits = logits
        return await asyncio.gather(*(ask_one(engine, session, prompt, greedy(TOKENS, logprobs=1))
                                      for session, prompt in enumerate(prompts)))

    answers = with_engine(checkpoint(), talk, max_prefill_token_num=128,
                          enable_prefix_caching=True)
    check(answers, ask(checkpoint(), prompts, greedy(TOKENS, logprobs=1)))
    assert batches == [1, 8]
    assert watch.figures.cached_tokens == 8 * 96


def converse(folder, rounds, watch, **settings):
    """Answers to the rounds of several sessions that are open at the same time, asked once more as
    a client without sessions asks: all that was said, in a session of its own."""

    async def talk(engine):
        watch(engine)

        async def one(number):
            answers, said = [], []
            for turn, parts in enumerate(rounds[number]):
                config = greedy(TOKENS, logprobs=1)
                said += parts
                answers.append(await ask_one(engine, 100 * number + turn + 1000,
                                             prompt_of(*said), config))
                said.append(answers[-1].ids)
                answers.append(await ask_one(engine, number, prompt_of(*parts), config, end=False))
            await engine.create_instance().async_end(number)
            return answers

        return await asyncio.gather(*map(one, range(len(rounds))))

    return with_engine(folder, talk, **settings)


@pytest.mark.parametrize('blocks', [24, 400])
def test_opened_sessions(checkpoint, blocks):
    """The trie knows what a session asks next, since another one asked it: its last block, half
    full, gives way to a known one. In few blocks idle sessions lose theirs."""
    rounds = [[[START[:5 * number], IMAGES[number % 3], text(turn, 9)] if turn != 1 else
               [text(turn, 30)] for turn in range(3)] for number in range(5)]
    plain = converse(checkpoint(), rounds, Watch(), num_gpu_blocks=400)
    watch = Watch()
    answers = converse(checkpoint(), rounds, watch, num_gpu_blocks=blocks,
                       enable_prefix_caching=True)
    for answer, expected in zip(answers, plain):
        check(answer, expected)
    assert not watch.overwritten
    assert watch.figures.cached_tokens > 100 and (watch.preempted > 3) == (blocks < 100)
