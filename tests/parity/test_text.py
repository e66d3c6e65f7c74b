"""Text: the ids of the CPU engine are those of a plain float32 reference."""
import random

import pytest

from tests.parity.engine import ask, greedy
from tests.parity.reference import Reference

TOKENS = 20  # more than a decoding loop of 15 steps


def prompts_of(lengths, seed=0):
    """Prompts of random ids of the tiny checkpoints' vocabulary."""
    chance = random.Random(seed)
    return [[chance.randrange(300) for _ in range(length)] for length in lengths]


MIXED = prompts_of([1, 2, 15, 16, 17, 40, 63, 64, 65, 150])


@pytest.fixture(scope='module')
def expected(checkpoint):
    """Answers of the reference to MIXED, by shape of the checkpoint."""
    answers = {}

    def ids(shape='tiny'):
        if shape not in answers:
            reference = Reference(checkpoint(shape))
            answers[shape] = [reference.ids(prompt, TOKENS) for prompt in MIXED]
        return answers[shape]

    return ids


def ids_of(answers):
    return [answer.ids for answer in answers]


@pytest.mark.parametrize('shape', ['tiny', 'tiny-internlm2', 'tiny-llama'])
def test_a_batch_of_mixed_lengths(checkpoint, expected, shape):
    assert ids_of(ask(checkpoint(shape), MIXED, greedy(TOKENS))) == expected(shape)


@pytest.mark.parametrize('settings', [
    dict(block_size=16),
    dict(block_size=16, max_prefill_token_num=32),
    dict(block_size=16, max_prefill_token_num=32, max_batch_size=3),
    dict(prefill_interval=2),
    dict(max_batch_size=1),
], ids=str)
def test_small_blocks_chunked_prefill_and_small_batches(checkpoint, expected, settings):
    assert ids_of(ask(checkpoint(), MIXED, greedy(TOKENS), **settings)) == expected()


def test_prefix_caching_reuses_blocks_and_changes_nothing(checkpoint, expected):
    prefilled = []

    def watch(engine):
        compute = engine.model_agent.logits

        def logits(inputs, all_positions):
            if not inputs.is_decoding:
                prefilled.append(inputs.input_ids.numel())
            return compute(inputs, all_positions)

        engine.model_agent.logits = logits

    answers = ask(checkpoint(), MIXED, greedy(TOKENS), rounds=2, watch=watch, block_size=16,
                  enable_prefix_caching=True)
    assert ids_of(answers) == expected()
    total = sum(map(len, MIXED))
    # the second time only what does not fill a block is computed
    assert sum(prefilled) < total + len(MIXED) * 17


def test_prefix_hit_with_chunked_prefill(checkpoint, expected):
    answers = ask(checkpoint(), MIXED, greedy(TOKENS), rounds=2, block_size=16,
                  max_prefill_token_num=32, enable_prefix_caching=True)
    assert ids_of(answers) == expected()


def test_requests_that_come_and_go_while_others_decode(checkpoint, expected):
    """Answers of different lengths: the batch shrinks and grows."""
    lengths = [1, 20, 3, 17, 5, 16, 2, 15, 9, 20]
    answers = ask(checkpoint(), MIXED, [greedy(n) for n in lengths], block_size=16,
                  max_batch_size=4)
    assert ids_of(answers) == [ids[:n] for ids, n in zip(expected(), lengths)]


@pytest.mark.parametrize('length, room', [(200, 40), (239, 1), (250, 0)])
def test_an_answer_that_fills_the_cache_ends_there(checkpoint, length, room):
    """Of 256 tokens of cache a decoding loop wants 16 ahead; the next request is answered."""
    long, short = prompts_of([length, 20], seed=4)
    answers = ask(checkpoint(), [long, short], greedy(100), block_size=16, num_gpu_blocks=16)
    reference = Reference(checkpoint())
    assert ids_of(answers) == [reference.ids(long, room) if room else [],
                               reference.ids(short, 100)]
