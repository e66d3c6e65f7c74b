"""Registration with transformers; checkpoints that carry remote code keep it."""
import json
import shutil
import subprocess
import sys

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from lmdeploy_ext.models import register
from lmdeploy_ext.models.configuration import InternLM2Config, InternVLChatConfig
from lmdeploy_ext.models.internlm2 import InternLM2ForCausalLM, InternLM2Model
from lmdeploy_ext.models.internvl import InternVLChatModel

AUTO_MAP = {
    'AutoConfig': 'configuration_internvl_chat.InternVLChatConfig',
    'AutoModel': 'modeling_internvl_chat.InternVLChatModel',
    'AutoModelForCausalLM': 'modeling_internvl_chat.InternVLChatModel',
}
REMOTE_CONFIG = '''
from transformers import PretrainedConfig, Qwen2Config


class InternVLChatConfig(PretrainedConfig):
    model_type = 'internvl_chat'

    def __init__(self, llm_config=None, **kwargs):
        super().__init__(**kwargs)
        self.llm_config = Qwen2Config(**(llm_config or {}))
'''
REMOTE_MODEL = '''
from torch import nn
from transformers import PreTrainedModel

from .configuration_internvl_chat import InternVLChatConfig


class InternVLChatModel(PreTrainedModel):
    config_class = InternVLChatConfig

    def __init__(self, config):
        super().__init__(config)
        self.mlp1 = nn.Linear(2, 2)
'''


@pytest.mark.parametrize('shape', ['tiny', 'tiny-internlm2', 'tiny-llama'])
def test_a_folder_without_python_files_loads(tiny_checkpoint, shape):
    folder = tiny_checkpoint(shape)
    assert type(AutoConfig.from_pretrained(folder)) is InternVLChatConfig
    assert type(AutoModel.from_pretrained(folder)) is InternVLChatModel
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model) is InternVLChatModel
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert len(tokenizer) == model.config.llm_config.vocab_size


def test_internlm2_alone_is_registered_too():
    config = InternLM2Config(vocab_size=8,
                             hidden_size=8,
                             intermediate_size=8,
                             num_hidden_layers=1,
                             num_attention_heads=2)
    assert type(AutoModel.from_config(config)) is InternLM2Model
    assert type(AutoModelForCausalLM.from_config(config)) is InternLM2ForCausalLM


def test_registering_twice_changes_nothing():
    register()
    register()
    assert type(AutoConfig.for_model('internlm2')) is InternLM2Config


@pytest.fixture
def remote_folder(tiny_checkpoint, tmp_path):
    """A checkpoint whose config.json points to Python files beside it."""
    folder = shutil.copytree(tiny_checkpoint(), tmp_path / 'InternVL2-remote')
    fields = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(dict(fields, auto_map=AUTO_MAP)))
    (folder / 'configuration_internvl_chat.py').write_text(REMOTE_CONFIG)
    (folder / 'modeling_internvl_chat.py').write_text(REMOTE_MODEL)
    return folder


def test_remote_code_wins_where_it_is_trusted(remote_folder):
    config = AutoConfig.from_pretrained(remote_folder, trust_remote_code=True)
    assert type(config).__module__.startswith('transformers_modules.')
    model = AutoModel.from_config(config, trust_remote_code=True)
    assert type(model).__module__.startswith('transformers_modules.')
    assert not hasattr(model, 'vision_model')


def test_our_classes_serve_where_it_is_not_trusted(remote_folder):
    config = AutoConfig.from_pretrained(remote_folder, trust_remote_code=False)
    assert type(config) is InternVLChatConfig
    assert type(AutoModel.from_pretrained(remote_folder, trust_remote_code=False)) is \
        InternVLChatModel


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = ('import sys, lmdeploy_ext.models; '
            'sys.exit(any(name in sys.modules for name in ("torch", "transformers")))')
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
