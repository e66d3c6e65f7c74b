"""Log-probabilities are those of the reference, within 1e-4: float32 sums in another order."""
import pytest
import torch
from lmdeploy import GenerationConfig
from lmdeploy.pytorch.engine.engine import Engine

from tests.parity.engine import ask, greedy
from tests.parity.reference import Reference
from tests.parity.test_text import prompts_of

TOLERANCE = 1e-4
PROMPTS = prompts_of([3, 20, 70, 33], seed=1)


def sampled(**fields) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=18, top_k=40, temperature=1.3, ignore_eos=True,
                            logprobs=3, **fields)


def check(answer, prompt, reference: Reference, count: int):
    """One record a token: the likeliest `count` tokens and the chosen one."""
    rows = reference.logprobs(prompt, answer.ids)
    assert len(answer.logprobs) == len(answer.ids)
    for record, token_id, row in zip(answer.logprobs, answer.ids, rows):
        likeliest = set(row.topk(count).indices.tolist())
        assert set(record) == likeliest | {token_id}
        found = torch.tensor(list(record.values()))
        torch.testing.assert_close(found, row[list(record)], atol=TOLERANCE, rtol=0)


@pytest.fixture(scope='module')
def reference(checkpoint):
    return Reference(checkpoint())


@pytest.mark.parametrize('settings', [
    dict(),
    dict(block_size=16, max_prefill_token_num=32, max_batch_size=3),
    dict(block_size=16, enable_prefix_caching=True, rounds=2),
], ids=['batch', 'chunked', 'prefix'])
@pytest.mark.parametrize('config', [
    greedy(18, logprobs=5),
    sampled(random_seed=5),
    sampled(random_seed=5, repetition_penalty=1.5, bad_token_ids=[3, 4, 5]),
], ids=['greedy', 'sampled', 'penalised'])
def test_records_are_those_of_the_raw_logits(checkpoint, reference, settings, config):
    answers = ask(checkpoint(), PROMPTS, config, **settings)
    for answer, prompt in zip(answers, PROMPTS):
        assert len(answer.ids) == 18
        check(answer, prompt, reference, config.logprobs)


def test_only_the_request_that_asks_gets_them(checkpoint, reference):
    asked, not_asked = ask(checkpoint(), PROMPTS[:2], [greedy(4, logprobs=1), greedy(4)])
    check(asked, PROMPTS[0], reference, 1)
    assert not_asked.logprobs is None


def test_processors_of_the_request_still_work_and_do_not_change_the_record(checkpoint, reference):
    def only_seven(all_ids, logits):
        logits[:] = float('-inf')
        logits[7] = 0
        return logits

    config = greedy(3, logprobs=2, logits_processors=[only_seven])
    answer, = ask(checkpoint(), PROMPTS[:1], config)
    assert answer.ids == [7, 7, 7]
    check(answer, PROMPTS[0], reference, 2)
    assert config.logprobs == 2 and config.logits_processors == [only_seven]


def test_an_answer_that_ends_at_a_stop_token(checkpoint, reference):
    """Upstream does not give out the stop token: no record for it either."""
    whole, = ask(checkpoint(), PROMPTS[:1], greedy(18))
    for position in (3, 15, 16):
        stop = whole.ids[position]
        before = whole.ids[:whole.ids.index(stop)]
        config = GenerationConfig(max_new_tokens=18, top_k=1, temperature=1.0, logprobs=2,
                                  bad_token_ids=[316], stop_token_ids=[stop])
        answer, = ask(checkpoint(), PROMPTS[:1], config)
        assert answer.ids == before
        if before:
            check(answer, PROMPTS[0], reference, 2)


def test_a_stop_token_that_stock_misses_leaves_the_records_in_step(checkpoint, reference, stock):
    stock(Engine, 'update_running')
    whole, = ask(checkpoint(), PROMPTS[:1], greedy(18))
    config = GenerationConfig(max_new_tokens=6, top_k=1, temperature=1.0, logprobs=2,
                              bad_token_ids=[316], stop_token_ids=whole.ids[:1])
    answer, = ask(checkpoint(), PROMPTS[:1], config)
    assert answer.ids == whole.ids[1:6], 'stock swallows the stop token and goes on'
    # the records are those behind it
    expected, = ask(checkpoint(), [PROMPTS[0] + whole.ids[:1]], greedy(5, logprobs=2))
    assert [set(record) for record in answer.logprobs] == [set(r) for r in expected.logprobs]


def test_preempted_requests(checkpoint, reference):
    """10 blocks for 4 prompts that need 15: some are computed twice."""
    answers = ask(checkpoint(), PROMPTS, greedy(18, logprobs=2), block_size=16, num_gpu_blocks=10)
    for answer, prompt in zip(answers, PROMPTS):
        assert answer.ids == reference.ids(prompt, 18)
        check(answer, prompt, reference, 2)
