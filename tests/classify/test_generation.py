"""Greedy answers with log-probabilities from both of LMDeploy's engines."""
import pytest

from lmdeploy_ext.classify.errors import ImageError
from lmdeploy_ext.classify.generation import GREEDY_SEED, check_finished, sampling
from lmdeploy_ext.classify.probability import TOP_LOGPROBS

_MASK = (1 << 32) - 1


def curand_uniform(seed, count):
    """The first draws of cuRAND's device generator XORWOW after `curand_init(seed, 0, 0)`.

    Marsaglia, Xorshift RNGs, J. Stat. Soft. 8(14), 2003; how a seed becomes a state, and a state a
    number in (0, 1], is in CUDA's `curand_kernel.h` and `curand_uniform.h`.
    """
    low = 1099087573 * ((seed & _MASK) ^ 0xaad26b49) & _MASK
    high = 2591861531 * ((seed >> 32) ^ 0xf7dcefdd) & _MASK
    counter = 6615241 + high + low
    state = [(123456789 + low) & _MASK, 362436069 ^ low, (521288629 + high) & _MASK,
             88675123 ^ high, (5783321 + low) & _MASK]
    draws = []
    for _ in range(count):
        mixed = state[0] ^ (state[0] >> 2)
        last = (state[4] ^ (state[4] << 4) ^ mixed ^ (mixed << 1)) & _MASK
        state = state[1:] + [last]
        counter += 362437
        draws.append((((counter + last) & _MASK) + 0.5) / 2**32)
    return draws


def test_this_is_curands_generator():
    assert curand_uniform(1234, 1)[0] == pytest.approx(0.145468, abs=1e-6)


def test_the_first_four_draws_choose_the_best_of_all_candidates():
    """The best of 64 candidates has at least 1/64 of their probability."""
    assert max(curand_uniform(GREEDY_SEED, 4)) < 1 / TOP_LOGPROBS


def test_an_engine_that_reports_what_top_k_leaves_is_left_all_that_is_wanted():
    assert sampling(64, after_top_k=True)['top_k'] == 64
    assert sampling(64, after_top_k=False)['top_k'] == 1


@pytest.mark.parametrize('reason, tokens, message', [
    ('error', 0, 'internal error'),
    ('length', 0, 'more tokens than a session may'),
    ('stop', 0, 'before the first token'),
])
def test_an_answer_that_is_none(reason, tokens, message):
    with pytest.raises(ImageError, match=message):
        check_finished(reason, tokens)
    check_finished('length', 1)
    check_finished('stop', 1)
