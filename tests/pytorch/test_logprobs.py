"""The recorder alone: what it keeps, and that it changes nothing."""
import copy
from types import SimpleNamespace

import pytest
import torch
from lmdeploy import GenerationConfig

from lmdeploy_ext.pytorch.logprobs import LogprobRecorder, record_logprobs

ROWS = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 0.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
ENGINE = SimpleNamespace(tokenizer=SimpleNamespace(model=SimpleNamespace(model=range(4))))


def run(recorder, choices):
    ids = [9]
    for row, choice in zip(ROWS, choices):
        logits = row.clone()
        assert recorder(torch.tensor(ids), logits) is logits and torch.equal(logits, row)
        ids.append(choice)


def expect(record, row, ids):
    values = ROWS[row].log_softmax(-1)
    assert record == {i: pytest.approx(float(values[i]), abs=1e-6) for i in ids}


def test_the_likeliest_and_the_chosen():
    recorder = LogprobRecorder(2, known_ids=4)
    run(recorder, [1, 3, 0])
    records = recorder.records([1, 3, 0])
    expect(records[0], 0, [1, 3])
    expect(records[1], 1, [0, 2, 3])
    expect(records[2], 2, [3, 2, 0])
    assert recorder.records([1, 3, 0]) == records


def test_tokens_may_be_asked_for_one_after_another():
    recorder = LogprobRecorder(1, known_ids=4)
    for end, row in enumerate(ROWS, 1):
        recorder(torch.tensor([9, 1, 0, 3][:end]), row)
        assert len(recorder.records([1, 0, 3][:end])) == end
    expect(recorder.records([1, 0, 3])[1], 1, [0])


def test_steps_whose_token_was_never_given_out_are_passed():
    recorder = LogprobRecorder(1, known_ids=4)
    run(recorder, [1, 2, 3])
    first, second = recorder.records([1, 3])
    expect(first, 0, [1])
    expect(second, 2, [3])


def test_padding_of_the_vocabulary_is_no_candidate():
    recorder = LogprobRecorder(3, known_ids=2)
    run(recorder, [1])
    expect(recorder.records([1])[0], 0, [0, 1])


def test_fp16_logits_are_summed_in_float32():
    recorder = LogprobRecorder(1, known_ids=4)
    recorder(torch.tensor([9]), ROWS[0].half())
    expect(recorder.records([1])[0], 0, [1])


def test_upstreams_deep_copies_share_the_record():
    recorder = LogprobRecorder(1, known_ids=4)
    assert copy.deepcopy([recorder])[0] is recorder


def test_the_callers_config_stays():
    config = GenerationConfig(logprobs=2)
    recording, recorder = record_logprobs(config, ENGINE)
    assert config.logprobs == 2 and config.logits_processors is None
    assert recording.logprobs is None and recording.logits_processors == [recorder]


@pytest.mark.parametrize('config', [None, GenerationConfig(), GenerationConfig(logprobs=0)])
def test_nothing_is_recorded_unasked(config):
    assert record_logprobs(config, ENGINE) == (config, None)
