"""The model agent: float32, a cache of zeros, a thread of its own; and what it refuses."""
import asyncio
import json
import logging
import time

import pytest
import torch
from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig, pipeline
from lmdeploy.pytorch.engine import Engine
from lmdeploy.vl.model.builder import load_vl_model
from transformers import LlavaConfig, MistralConfig, MixtralConfig

from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.pytorch.limits import UnsupportedOnCpu
from tests.parity.engine import ask, greedy

register()


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp('checkpoint')
    write_checkpoint(folder, 'tiny', dtype='bfloat16')
    return str(folder)


@pytest.fixture
def config_only(tmp_path):
    """A folder with a config.json and no weights: what is refused, is refused before they load."""
    def write(config):
        (tmp_path / 'config.json').write_text(json.dumps(config.to_dict()))
        return str(tmp_path)

    return write


def build(folder, **settings):
    return Engine(folder, PytorchEngineConfig(device_type='cpu', **settings))


def test_weights_and_cache_are_float32_and_it_is_said_once(checkpoint, caplog):
    with caplog.at_level(logging.INFO, 'lmdeploy_ext'):
        agent = build(checkpoint, num_gpu_blocks=20).model_agent
    assert {p.dtype for p in agent.patched_model.get_model().parameters()} == {torch.float32}
    caches = [cache for layer in agent.cache_engine.gpu_cache for cache in layer]
    assert {(len(c), c.dtype, bool(c.any())) for c in caches} == {(20, torch.float32, False)}
    said = [r.getMessage() for r in caplog.records if 'float32' in r.getMessage()]
    assert said == [f'{checkpoint} is stored as torch.bfloat16; '
                    'the CPU backend computes in torch.float32']


def test_the_setting_sizes_the_cache(checkpoint, monkeypatch):
    monkeypatch.setenv('LMDEPLOY_EXT_CPU_KV_GB', '0.125')
    # 64 tokens, 2 layers, keys and values of one head of 128 float32
    assert build(checkpoint).cache_config.num_gpu_blocks == (1 << 27) // (64 * 2 * 2 * 128 * 4)


def test_a_cache_that_is_too_small_is_an_error_in_one_sentence(checkpoint, monkeypatch):
    monkeypatch.setenv('LMDEPLOY_EXT_CPU_KV_GB', '0.001')
    with pytest.raises(RuntimeError, match='16 blocks of KV cache.*LMDEPLOY_EXT_CPU_KV_GB'):
        build(checkpoint)


def test_the_event_loop_goes_on_during_a_forward_pass(checkpoint):
    """Stock, a forward pass would hold up everything for its 0.2 seconds."""
    agent = build(checkpoint, num_gpu_blocks=20).model_agent

    def slow(inputs, all_positions):
        time.sleep(0.2)

    async def longest_pause():
        task = asyncio.ensure_future(agent.async_logits(None, False))
        pause, last = 0.0, time.perf_counter()
        while not task.done():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            pause, last = max(pause, now - last), now
        return pause

    agent.logits = slow
    assert asyncio.run(longest_pause()) < 0.15


@pytest.mark.parametrize('limit', [4096, 32])
def test_logits_of_every_position(checkpoint, loop, limit):
    """What perplexities are made of; also in chunks."""
    engine = build(checkpoint, block_size=16, num_gpu_blocks=40, max_prefill_token_num=limit)
    prompt = list(range(50))
    found = engine.create_instance().decode([prompt])
    model = InternVLChatModel.from_pretrained(checkpoint, torch_dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([prompt])).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_thread_safe_engine_answers_without_an_event_loop(checkpoint):
    engine = build(checkpoint, num_gpu_blocks=40, thread_safe=True)
    *_, last = engine.create_instance().stream_infer(0, [1, 2, 3], greedy(4, logprobs=2))
    expected, = ask(checkpoint, [[1, 2, 3]], greedy(4, logprobs=2))
    assert last.token_ids == expected.ids
    assert last.logprobs == expected.logprobs


def test_a_thread_safe_engine_and_who_asks_it_have_one_queue_from_the_start(checkpoint):
    """Made at first use it was made twice at times: the engine filled one, the thread waited for
    the other."""
    engine = build(checkpoint, num_gpu_blocks=40, thread_safe=True)
    sender = engine.create_instance().req_sender
    assert sender._resp_thread_que is not None
    assert sender.resp_thread_que is sender._resp_thread_que


@pytest.mark.parametrize('fields', [dict(tp=2), dict(adapters=dict(a='/a'))], ids=str)
def test_settings_are_refused_before_anything_is_loaded(tmp_path, fields):
    with pytest.raises(UnsupportedOnCpu):
        build(str(tmp_path / 'nothing here'), **fields)


def test_settings_of_a_turbomind_config_are_refused_too(checkpoint):
    with pytest.raises(UnsupportedOnCpu, match='tp=2'):
        pipeline(checkpoint, TurbomindEngineConfig(tp=2))


def test_a_mixture_of_experts_is_refused_by_name(config_only):
    config = MixtralConfig(architectures=['MixtralForCausalLM'], torch_dtype='float16')
    with pytest.raises(UnsupportedOnCpu, match='MixtralForCausalLM.*MoE'):
        build(config_only(config))


def test_other_vision_models_are_refused_by_name(config_only):
    config = LlavaConfig(architectures=['LlavaForConditionalGeneration'])
    with pytest.raises(UnsupportedOnCpu, match='LlavaForConditionalGeneration'):
        load_vl_model(config_only(config), backend_config=PytorchEngineConfig(device_type='cpu'))


def test_text_models_need_not_be_internvl(config_only):
    """Without weights, but as far as loading them."""
    config = MistralConfig(architectures=['MistralForCausalLM'], hidden_size=64,
                           intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=1, torch_dtype='float16', vocab_size=100)
    with pytest.raises(RuntimeError, match='Unknown weight type'):
        build(config_only(config))
