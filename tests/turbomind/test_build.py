"""When an engine gets virtual tokens, and what it says where it gets none."""
from types import SimpleNamespace

import pytest
import torch
from lmdeploy import TurbomindEngineConfig
from lmdeploy.messages import EngineOutput, ResponseType

from lmdeploy_ext.turbomind import build
from lmdeploy_ext.turbomind.build import (CapturedTable, build_virtual_tokens, most_tokens,
                                          pool_slots)
from lmdeploy_ext.turbomind.kv_capacity import kv_capacity
from lmdeploy_ext.turbomind.self_test import SelfTestFailed, check_virtual_tokens, distance
from lmdeploy_ext.turbomind.virtual_ids import NoPlace
from lmdeploy_ext.vision.build import has_virtual_tokens, shares_images, takes_device_tensors
from tests.turbomind.stand_in import HIDDEN, StandInEngine

GIB = 1 << 30
INTERNVL2_8B = SimpleNamespace(num_layer=32, kv_head_num=8, size_per_head=128, hidden_units=4096,
                               vocab_size=92553)


def engine(captured=CapturedTable([1 << 40], torch.float16, 0, 100 * GIB), **options):
    return SimpleNamespace(
        captured_table=captured, config=SimpleNamespace(model_config=INTERNVL2_8B),
        engine_config=TurbomindEngineConfig(**{**dict(enable_prefix_caching=True), **options}))


@pytest.mark.parametrize('captured, reason', [
    (None, 'workspace'),
    (CapturedTable([1 << 40, 1 << 41], torch.float16, 0, GIB), 'tp is 2'),
])
def test_one_warning_says_why_images_take_the_stock_path(captured, reason, caplog):
    assert build_virtual_tokens(engine(captured)) is None
    assert [record.levelname for record in caplog.records] == ['WARNING']
    assert reason in caplog.text and 'stock path' in caplog.text


@pytest.mark.parametrize('error', [NoPlace('no place'), SelfTestFailed('differs')])
def test_memory_is_given_back_where_a_check_fails(error, monkeypatch, caplog):
    closed = []

    def fail(*_):
        raise error

    monkeypatch.setattr(build, '_memory',
                        lambda *_: SimpleNamespace(close=lambda: closed.append(True)))
    monkeypatch.setattr(build, '_virtual_tokens', fail)
    assert build_virtual_tokens(engine()) is None
    assert closed and str(error) in caplog.text


def test_nobody_is_warned_of_what_nobody_asked_for(monkeypatch, caplog):
    assert build_virtual_tokens(engine(enable_prefix_caching=False)) is None
    monkeypatch.setenv('LMDEPLOY_EXT_PREFIX_CACHE', 'off')
    assert build_virtual_tokens(engine()) is None
    assert not caplog.records


def test_features_stay_on_the_gpu_for_an_engine_that_is_to_have_virtual_tokens(monkeypatch):
    on, off = TurbomindEngineConfig(enable_prefix_caching=True), TurbomindEngineConfig()
    assert has_virtual_tokens(on) and takes_device_tensors(on) and shares_images(on)
    assert not has_virtual_tokens(off) and not takes_device_tensors(off)
    assert not has_virtual_tokens(TurbomindEngineConfig(enable_prefix_caching=True, tp=2))
    monkeypatch.setenv('LMDEPLOY_EXT_PREFIX_CACHE', 'text')
    assert takes_device_tensors(on) and not shares_images(on)


def test_the_size_of_a_pool():
    row = 8192
    assert pool_slots(None, 128, 1000 * GIB, row) == 128 * 4
    assert pool_slots(None, 128, 10 * GIB, row) == 10 * GIB // 20 // row // 256
    assert pool_slots(1000, 128, GIB, row) == 3
    assert pool_slots(10, 128, GIB, row) == 1


def test_prompts_whose_keys_depend_on_their_length_are_bounded():
    scaling = dict(max_position_embeddings=32768, rope_scaling_factor=2.0)
    assert most_tokens(SimpleNamespace(use_dynamic_ntk=1, **scaling)) == 32768
    assert most_tokens(SimpleNamespace(use_dynamic_ntk=0, **scaling)) is None


def test_bounds_of_the_kv_blocks():
    """32 layers, 8 heads of 128 halves, keys and values: 128 KiB a token."""
    config = TurbomindEngineConfig(cache_max_entry_count=0.5)
    capacity = kv_capacity(INTERNVL2_8B, config, 2, 64 * GIB, 128 * GIB)
    assert capacity.most == 64 * GIB // (128 << 10) and capacity.least == capacity.most // 4
    quantised = TurbomindEngineConfig(cache_max_entry_count=0.5, quant_policy=4)
    assert kv_capacity(INTERNVL2_8B, quantised, 2, GIB, 128 * GIB).most == 4 * capacity.most
    counted = SimpleNamespace(cache_max_entry_count=100.0, cache_block_seq_len=64)
    assert kv_capacity(INTERNVL2_8B, counted, 2, GIB, GIB).most == 6400


class AnsweringEngine(StandInEngine):
    """Gives log-probabilities that depend on the mean of what a prompt's ids mean.

    Args:
        virtual_error: added where the prompt has virtual tokens.
        deaf: whether images make no difference.
    """

    def __init__(self, virtual_error=0.0, deaf=False):
        super().__init__(slots=64)
        self.config.model_config = SimpleNamespace(vocab_size=500)
        self.virtual_error, self.deaf = virtual_error, deaf

    def create_instance(self, cuda_stream_id=0):
        return SimpleNamespace(stream_infer=self.stream_infer)

    def stream_infer(self, session, ids, input_embeddings=None, input_embedding_ranges=None,
                     **options):
        if input_embeddings:
            rows, error = input_embeddings[0], 0.0
        else:
            ids = [token for token in ids if token >= 500]
            rows, error = self.memory[ids], self.virtual_error
        value = 0.0 if self.deaf else 10 * float(rows[:100].float().mean())
        yield EngineOutput(ResponseType.FINISH, [1], 1, [{1: value + error, 2: -value}])


def test_the_self_test_passes_where_both_ways_agree_and_leaves_nothing_behind():
    engine = AnsweringEngine()
    check_virtual_tokens(engine, engine.virtual_tokens, HIDDEN)
    rows = engine.virtual_tokens.figures().queue.rows
    assert rows.rows_in_use == 0 and rows.hit_images == 2


@pytest.mark.parametrize('options, reason', [
    (dict(virtual_error=0.3), 'first answer with virtual tokens differs'),
    (dict(deaf=True), 'cannot tell two random images apart'),
])
def test_the_self_test_fails_with_the_reason(options, reason):
    engine = AnsweringEngine(**options)
    with pytest.raises(SelfTestFailed, match=reason):
        check_virtual_tokens(engine, engine.virtual_tokens, HIDDEN)
    assert engine.virtual_tokens.figures().queue.rows.rows_in_use == 0


def test_a_session_too_short_for_the_self_test_is_a_reason():
    engine = AnsweringEngine()
    engine.session_len = 400
    with pytest.raises(SelfTestFailed, match='session_len is 400'):
        check_virtual_tokens(engine, engine.virtual_tokens, HIDDEN)


def test_answers_with_few_tokens_in_common_are_far_apart():
    assert distance({1: 0.0, 2: -1.0}, {1: -0.5, 3: -1.0}) == 0.5
    assert distance({1: 0.0}, {2: 0.0}) == float('inf')
