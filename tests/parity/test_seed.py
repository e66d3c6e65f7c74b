"""`random_seed` fixes a sampled answer, whatever else is in the batch."""
from lmdeploy import GenerationConfig

from tests.parity.engine import ask, greedy
from tests.parity.test_text import prompts_of

PROMPTS = prompts_of([5, 30, 8, 50], seed=2)


def sampled(seed, **fields):
    return GenerationConfig(**dict(dict(max_new_tokens=20, top_k=50, temperature=1.0,
                                        ignore_eos=True, random_seed=seed), **fields))


def test_a_seed_gives_the_same_answer_alone_and_among_others(checkpoint):
    prompt = PROMPTS[0]
    alone, = ask(checkpoint(), [prompt], sampled(1))
    again, = ask(checkpoint(), [prompt], sampled(1))
    assert alone.ids == again.ids
    others = [greedy(20), sampled(1), sampled(99, top_p=0.5), sampled(7, top_k=0, min_p=0.01)]
    among = ask(checkpoint(), [PROMPTS[1], prompt, PROMPTS[2], PROMPTS[3]], others, block_size=16,
                max_prefill_token_num=32)
    assert among[1].ids == alone.ids


def test_another_seed_gives_another_answer(checkpoint):
    prompt = PROMPTS[0]
    answers = ask(checkpoint(), [prompt] * 4, [sampled(seed) for seed in (1, 2, 3, 1)])
    ids = [tuple(answer.ids) for answer in answers]
    assert len(set(ids)) == 3 and ids[0] == ids[3]


def test_greedy_needs_no_seed(checkpoint):
    one, two = ask(checkpoint(), [PROMPTS[0]] * 2, [greedy(20), greedy(20, random_seed=3)])
    assert one.ids == two.ids


def test_more_candidates_than_the_vocabulary_has_are_all_of_it(checkpoint):
    whole, more, other = ask(checkpoint(), [PROMPTS[0]] * 3,
                             [sampled(1, top_k=0), sampled(1, top_k=100_000), greedy(20)])
    assert more.ids == whole.ids != other.ids
