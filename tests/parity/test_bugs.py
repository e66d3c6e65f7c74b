"""Upstream bugs that show in answers of the engine: wrong with stock LMDeploy, right patched."""
import asyncio

import pytest
from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy.pytorch.engine.engine import Engine
from lmdeploy.pytorch.messages import SchedulerSequence
from lmdeploy.pytorch.paging.eviction_helper import RecomputeEvictionHelper
from lmdeploy.pytorch.paging.scheduler import Scheduler

from tests.parity.engine import ask, ask_one, greedy
from tests.parity.reference import Reference
from tests.parity.test_text import ids_of, prompts_of

TOKENS = 20
PROMPTS = prompts_of([20, 33, 47, 25, 60, 18, 31], seed=3)
END = 316  # of the tiny checkpoints


@pytest.fixture(scope='module')
def expected(checkpoint):
    reference = Reference(checkpoint())
    return [reference.ids(prompt, TOKENS) for prompt in PROMPTS]


def ask_in_few_blocks(folder):
    """7 prompts in 16 blocks: sequences are preempted."""
    return ids_of(ask(folder, PROMPTS, greedy(TOKENS), block_size=16, num_gpu_blocks=16))


def test_stock_preemption_gives_wrong_answers(checkpoint, expected, stock):
    stock(RecomputeEvictionHelper, 'evict_for_seq')
    right = [a == b for a, b in zip(ask_in_few_blocks(checkpoint()), expected)]
    assert sum(right) < len(PROMPTS)


def test_preempted_sequences_give_the_right_answers(checkpoint, expected):
    assert ask_in_few_blocks(checkpoint()) == expected


@pytest.fixture(scope='module')
def chat(checkpoint):
    """Two questions of a chat, and a long prompt of another session between them."""
    first, long, second = prompts_of([50, 200, 20], seed=5)
    reference = Reference(checkpoint())
    start = reference.ids(first, 6)
    return first, long, second, reference.ids(first + start + second, 6)


def ask_chat(folder, first, long, second):
    """The answer to the second question; the long prompt takes all blocks in between."""
    async def run():
        engine = Engine(folder, PytorchEngineConfig(device_type='cpu', block_size=16,
                                                    num_gpu_blocks=16))
        await ask_one(engine, 0, first, greedy(6), end=False)
        await ask_one(engine, 1, long, greedy(6))
        return (await ask_one(engine, 0, second, greedy(6))).ids

    return asyncio.run(run())


def test_stock_goes_on_with_blocks_of_another_session(checkpoint, chat, stock):
    stock(SchedulerSequence, 'update_token_ids')
    *prompts, expected = chat
    assert ask_chat(checkpoint(), *prompts) != expected


def test_a_chat_goes_on_after_its_blocks_were_taken(checkpoint, chat):
    *prompts, expected = chat
    assert ask_chat(checkpoint(), *prompts) == expected


def ask_after_cancelling(folder, first, cancelled, second, **settings):
    """The answer to the last question of a session in which one was cancelled in the queue."""
    async def run():
        engine = Engine(folder, PytorchEngineConfig(device_type='cpu', block_size=16, **settings))
        await ask_one(engine, 0, first, greedy(6), end=False)
        schedule, cancelling = engine.scheduler.schedule, []

        def cancel_before(*args, **kwargs):
            engine.scheduler.schedule = schedule
            engine.scheduler.stop_session(0)
            cancelling[0].cancel()
            return schedule(*args, **kwargs)

        other = asyncio.ensure_future(ask_one(engine, 1, second, greedy(6)))
        engine.scheduler.schedule = cancel_before
        cancelling.append(asyncio.ensure_future(ask_one(engine, 0, cancelled, greedy(6))))
        await asyncio.wait([*cancelling, other])
        return (await ask_one(engine, 0, second, greedy(6))).ids

    return asyncio.run(run())


@pytest.fixture(scope='module')
def cancelled_chat(checkpoint):
    """Three questions of a session, the second one to be cancelled, and the last answer."""
    first, cancelled, second = prompts_of([50, 40, 20], seed=6)
    reference = Reference(checkpoint())
    start = reference.ids(first, 6)
    return first, cancelled, second, reference.ids(first + start + cancelled + second, 6)


def test_stock_counts_what_was_cancelled_in_the_queue_as_computed(checkpoint, cancelled_chat,
                                                                  stock):
    stock(Scheduler, 'stop_session')
    *prompts, expected = cancelled_chat
    assert ask_after_cancelling(checkpoint(), *prompts) != expected


@pytest.mark.parametrize('caching', [False, True])
def test_a_chat_goes_on_after_a_question_was_cancelled(checkpoint, cancelled_chat, caching):
    *prompts, expected = cancelled_chat
    answer = ask_after_cancelling(checkpoint(), *prompts, enable_prefix_caching=caching)
    assert answer == expected


def stopping_at(token_id):
    return GenerationConfig(max_new_tokens=TOKENS, top_k=1, temperature=1.0, bad_token_ids=[END],
                            stop_token_ids=[token_id])


def answer_with_stop(folder, expected, position):
    """A whole answer whose token at `position` is new there, and the engine's answer to the same
    prompt when that token is a stop token."""
    index, whole = next((i, ids) for i, ids in enumerate(expected)
                        if ids.index(ids[position]) == position)
    answer, = ids_of(ask(folder, [PROMPTS[index]], stopping_at(whole[position])))
    return whole, answer


# the last step of the prefill, of a decoding loop of 15 steps, and steps within it
@pytest.mark.parametrize('position', [0, 15])
def test_stock_misses_a_stop_token_at_the_end_of_a_loop(checkpoint, expected, stock, position):
    stock(Engine, 'update_running')
    _, answer = answer_with_stop(checkpoint(), expected, position)
    assert len(answer) > position


@pytest.mark.parametrize('position', [0, 1, 7, 14, 15, 16])
def test_an_answer_ends_before_its_stop_token(checkpoint, expected, position):
    whole, answer = answer_with_stop(checkpoint(), expected, position)
    assert answer == whole[:position]


def test_a_stop_token_of_one_request_does_not_stop_another(checkpoint, expected):
    """Requests of one batch may share their sampling parameters."""
    stop = expected[0][0]
    other = next(ids for ids in expected if stop not in ids)
    prompts = [PROMPTS[0], PROMPTS[expected.index(other)]]
    assert ids_of(ask(checkpoint(), prompts, stopping_at(stop))) == [[], other]


def test_a_full_trie_and_an_empty_one_can_be_asked_to_evict(checkpoint, expected):
    """Prefix caching in few blocks: the trie has to give some back, also when it has none."""
    answers = ask(checkpoint(), PROMPTS, greedy(TOKENS), rounds=2, block_size=16,
                  num_gpu_blocks=16, enable_prefix_caching=True)
    assert ids_of(answers) == expected
