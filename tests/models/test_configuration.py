"""Configurations: the released ones load; wrong ones are refused in one sentence."""
import json

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, Qwen2Config

from lmdeploy_ext.models.configuration import (InternLM2Config, InternVisionConfig,
                                               InternVLChatConfig)
from lmdeploy_ext.models.internvl import InternVLChatModel

# Fields of the published config.json files, written down as facts.
VISION = dict(architectures=['InternVisionModel'],
              attention_dropout=0.0,
              drop_path_rate=0.1,
              dropout=0.0,
              hidden_act='gelu',
              hidden_size=1024,
              image_size=448,
              initializer_factor=1.0,
              initializer_range=0.02,
              intermediate_size=4096,
              layer_norm_eps=1e-6,
              model_type='intern_vit_6b',
              norm_type='layer_norm',
              num_attention_heads=16,
              num_channels=3,
              num_hidden_layers=24,
              patch_size=14,
              qk_normalization=False,
              qkv_bias=True,
              torch_dtype='bfloat16',
              use_flash_attn=True)
CHAT = dict(architectures=['InternVLChatModel'],
            downsample_ratio=0.5,
            dynamic_image_size=True,
            force_image_size=448,
            max_dynamic_patch=12,
            min_dynamic_patch=1,
            model_type='internvl_chat',
            pad2square=False,
            ps_version='v2',
            select_layer=-1,
            torch_dtype='bfloat16',
            use_backbone_lora=0,
            use_llm_lora=0,
            use_thumbnail=True,
            vision_config=VISION)
INTERNLM2 = dict(architectures=['InternLM2ForCausalLM'],
                 attn_implementation='flash_attention_2',
                 bias=False,
                 bos_token_id=1,
                 eos_token_id=2,
                 hidden_act='silu',
                 initializer_range=0.02,
                 max_position_embeddings=32768,
                 model_type='internlm2',
                 num_key_value_heads=8,
                 pad_token_id=2,
                 rms_norm_eps=1e-5,
                 rope_scaling=dict(factor=2.0, type='dynamic'),
                 rope_theta=1000000,
                 tie_word_embeddings=False,
                 torch_dtype='bfloat16',
                 use_cache=True,
                 vocab_size=92553)
RELEASED = {
    'InternVL2-1B':
    dict(CHAT,
         template='Hermes-2',
         llm_config=dict(architectures=['Qwen2ForCausalLM'],
                         attn_implementation='flash_attention_2',
                         bos_token_id=151643,
                         eos_token_id=151645,
                         hidden_act='silu',
                         hidden_size=896,
                         intermediate_size=4864,
                         max_position_embeddings=32768,
                         max_window_layers=21,
                         model_type='qwen2',
                         num_attention_heads=14,
                         num_hidden_layers=24,
                         num_key_value_heads=2,
                         rms_norm_eps=1e-6,
                         rope_theta=1000000.0,
                         sliding_window=32768,
                         tie_word_embeddings=False,
                         torch_dtype='bfloat16',
                         use_sliding_window=False,
                         vocab_size=151655)),
    'InternVL2-2B':
    dict(CHAT,
         template='internlm2-chat',
         llm_config=dict(INTERNLM2,
                         hidden_size=2048,
                         intermediate_size=8192,
                         num_attention_heads=16,
                         num_hidden_layers=24)),
    'InternVL2-8B':
    dict(CHAT,
         template='internlm2-chat',
         llm_config=dict(INTERNLM2,
                         hidden_size=4096,
                         intermediate_size=14336,
                         num_attention_heads=32,
                         num_hidden_layers=32)),
}


@pytest.mark.parametrize('name, llm, millions', [('InternVL2-1B', Qwen2Config, 938),
                                                 ('InternVL2-2B', InternLM2Config, 2206),
                                                 ('InternVL2-8B', InternLM2Config, 8075)])
def test_a_released_config_loads_and_has_its_size(tmp_path, name, llm, millions):
    (tmp_path / 'config.json').write_text(json.dumps(RELEASED[name]))
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is InternVLChatConfig
    assert type(config.vision_config) is InternVisionConfig
    assert type(config.llm_config) is llm
    assert config.torch_dtype is config.llm_config.torch_dtype is torch.bfloat16
    assert config.num_image_token == 256
    with torch.device('meta'):
        model = InternVLChatModel(config)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


@pytest.mark.parametrize('name', RELEASED)
def test_a_config_survives_being_written_and_read(tmp_path, name):
    config = InternVLChatConfig(**RELEASED[name])
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.to_dict() == AutoConfig.from_pretrained(tmp_path).to_dict()
    for part in ('vision_config', 'llm_config'):
        before = getattr(config, part).to_dict()
        after = getattr(again, part).to_dict()
        assert {key: after[key] for key in RELEASED[name][part] if key in before} == \
            {key: before[key] for key in RELEASED[name][part] if key in before}


def test_what_lmdeploy_reads_of_a_released_config():
    """The names that lmdeploy 0.6.0 to 0.6.4 take from `llm_config` and from the top level."""
    config = InternVLChatConfig(**RELEASED['InternVL2-8B'])
    llm = config.llm_config
    assert (llm.hidden_size, llm.num_attention_heads, llm.num_key_value_heads) == (4096, 32, 8)
    assert (llm.num_hidden_layers, llm.vocab_size, llm.intermediate_size) == (32, 92553, 14336)
    assert (llm.bos_token_id, llm.eos_token_id, llm.pad_token_id) == (1, 2, 2)
    assert (llm.max_position_embeddings, llm.rms_norm_eps, llm.bias) == (32768, 1e-5, False)
    assert (llm.rope_theta, llm.rope_scaling) == (1000000, {'factor': 2.0, 'type': 'dynamic'})
    assert llm.architectures == ['InternLM2ForCausalLM']
    assert (config.min_dynamic_patch, config.max_dynamic_patch) == (1, 12)
    assert config.dynamic_image_size and config.use_thumbnail
    assert config.vision_config.image_size == 448
    assert config.to_dict()['llm_config']['architectures'] == ['InternLM2ForCausalLM']


def test_a_published_wish_for_flash_attention_does_not_bind_a_machine_without_it():
    config = InternVLChatConfig(**RELEASED['InternVL2-1B'])
    with torch.device('meta'):
        InternVLChatModel(config)
    assert config.llm_config._attn_implementation in ('eager', 'sdpa')


def test_sub_configurations_may_be_given_as_objects():
    vision, llm = InternVisionConfig(), LlamaConfig(architectures=['LlamaForCausalLM'])
    config = InternVLChatConfig(vision_config=vision, llm_config=llm)
    assert config.vision_config is vision and config.llm_config is llm


LLAMA = dict(architectures=['LlamaForCausalLM'])
INTERN = dict(architectures=['InternLM2ForCausalLM'])


@pytest.mark.parametrize('fields, found, expected', [
    (dict(llm_config=dict(architectures=['Phi3ForCausalLM'])), 'Phi3ForCausalLM',
     'InternLM2ForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM'),
    (dict(), 'None', 'InternLM2ForCausalLM'),
    (dict(llm_config={}), 'None', 'InternLM2ForCausalLM'),
    (dict(llm_config=LLAMA, ps_version='v3'), "'v3'", "'v1' and 'v2'"),
    (dict(llm_config=LLAMA, downsample_ratio=0.3), '0.3', '16 x 16 patches'),
    (dict(llm_config=LLAMA, downsample_ratio=0), '0', '16 x 16 patches'),
    (dict(llm_config=LLAMA, vision_config=dict(norm_type='batch_norm')), "'batch_norm'",
     "'rms_norm' and 'layer_norm'"),
    (dict(llm_config=LLAMA, vision_config=dict(num_attention_heads=7)), '3200', 'heads 7'),
    (dict(llm_config=LLAMA, vision_config=dict(image_size=225)), '225', 'patch_size 14'),
    (dict(llm_config=dict(INTERN, num_key_value_heads=5)), 'num_key_value_heads 5', 'multiple'),
    (dict(llm_config=dict(INTERN, rope_scaling=dict(type='yarn', factor=2.0))), "'yarn'",
     "'linear' or 'dynamic'"),
    (dict(llm_config=dict(INTERN, rope_scaling=dict(type='linear', factor=0.5))), '0.5',
     'at least 1'),
    (dict(llm_config=dict(INTERN, rope_scaling=dict(type='linear'))), "'linear'", 'factor'),
])
def test_a_wrong_field_is_named_in_one_line(fields, found, expected):
    with pytest.raises(ValueError) as error:
        InternVLChatConfig(**fields)
    message = str(error.value)
    assert found in message and expected in message and '\n' not in message
