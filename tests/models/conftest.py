"""Small models and checkpoints that several test files use."""
import pytest
import torch

from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.models.configuration import InternVLChatConfig
from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.shapes import VIT_TINY

register()

LLMS = ('InternLM2ForCausalLM', 'LlamaForCausalLM', 'Qwen2ForCausalLM')


@pytest.fixture(scope='session')
def tiny_checkpoint(tmp_path_factory):
    """Folder of a `tiny` checkpoint with the language model of the given shape, written once."""
    folders = {}

    def folder(shape='tiny'):
        if shape not in folders:
            folders[shape] = tmp_path_factory.mktemp('checkpoints') / f'InternVL2-{shape}'
            write_checkpoint(folders[shape], shape, dtype='float32', seed=7)
        return folders[shape]

    return folder


@pytest.fixture
def chat_model():
    """An InternVLChatModel of seeded random weights in fp32: 112-pixel tiles, 16 tokens each."""

    def build(llm='Qwen2ForCausalLM', vision=None, llm_fields=None, **fields):
        torch.manual_seed(0)
        llm_config = dict(architectures=[llm],
                          vocab_size=64,
                          hidden_size=32,
                          intermediate_size=48,
                          num_hidden_layers=2,
                          num_attention_heads=4,
                          num_key_value_heads=2,
                          initializer_range=0.3,
                          tie_word_embeddings=False,
                          bos_token_id=1,
                          eos_token_id=2,
                          pad_token_id=2)
        config = InternVLChatConfig(vision_config=dict(VIT_TINY, **vision or {}),
                                    llm_config=dict(llm_config, **llm_fields or {}),
                                    **dict(dict(ps_version='v2'), **fields))
        model = InternVLChatModel(config).eval()
        model.img_context_token_id = 5
        return model

    return build
