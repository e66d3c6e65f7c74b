"""Prefix caching from images to answers: what the vision service keys, the engine reuses."""
import pytest
import torch
from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig, pipeline

from lmdeploy_ext.pytorch.prefix import image_key
from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
from tests.parity.engine import greedy
from tests.parity.pixels import picture

IMAGES = [picture(seed, 300, 200) for seed in range(2)]
QUESTIONS = ['Describe the image.', 'How many beds are there?', 'Is it a kitchen?']
PROMPTS = [(question, image) for question in QUESTIONS for image in IMAGES]
TOKENS = 6


def answers(folder, **settings):
    """Ids of the answers, one after another, and the figures of the engine's cache."""
    pipe = pipeline(folder, PytorchEngineConfig(device_type='cpu', block_size=16, **settings))
    ids = [pipe(prompt, gen_config=greedy(TOKENS)).token_ids for prompt in PROMPTS]
    return ids, prefix_cache_of(pipe.engine.scheduler.block_trie).figures()


@pytest.mark.parametrize('settings', [{}, {'FEATURE_CACHE_MB': '0'}, {'VISION': 'off'}], ids=str)
def test_images_are_reused_by_content(checkpoint, loop, monkeypatch, settings):
    for name, value in settings.items():
        monkeypatch.setenv(f'LMDEPLOY_EXT_{name}', value)
    expected, _ = answers(checkpoint())
    if 'VISION' not in settings:  # the service's keys are used: nothing hashes 13 MB an image
        monkeypatch.delattr(image_key, 'values_key')
    found, figures = answers(checkpoint(), enable_prefix_caching=True)
    assert found == expected
    # 7 tiles of 16 tokens: 4 of 6 requests find all of an image, but for what shares a block
    assert figures.cached_tokens >= 4 * (7 * 16 - 16)
    assert figures.hit_rate > .4


@pytest.mark.parametrize('config', [
    PytorchEngineConfig(device_type='cpu', block_size=16, enable_prefix_caching=True),
    pytest.param(TurbomindEngineConfig(cache_block_seq_len=16, enable_prefix_caching=True),
                 marks=pytest.mark.skipif(torch.cuda.is_available(), reason='it stays TurboMind')),
], ids=['pytorch', 'turned into it'])
def test_a_model_with_images_may_cache_prefixes_of_text(checkpoint, loop, config):
    pipe = pipeline(checkpoint(), config)
    assert config.enable_prefix_caching  # 0.6.4 switches it off
    texts = ['The same beginning of a question, ' * 3 + end for end in ('one', 'two')]
    for prompt in texts:
        pipe(prompt, gen_config=greedy(TOKENS))
    assert prefix_cache_of(pipe.engine.scheduler.block_trie).figures().cached_tokens >= 32
