"""The chat template of a checkpoint: from its configuration, which knows more than the path."""
import json

import pytest
from lmdeploy.model import MODELS, best_match_model

from lmdeploy_ext.vl.chat_template import choose_template


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with a config.json."""
    def write(name, **config):
        folder = tmp_path / name
        folder.mkdir()
        fields = dict(model_type='internvl_chat', architectures=['InternVLChatModel'], **config)
        (folder / 'config.json').write_text(json.dumps(fields))
        return str(folder)

    return write


# the released InternVL2 models and what their configurations say
RELEASED = [('InternVL2-1B', 'Hermes-2', 'internvl2-internlm2'),
            ('InternVL2-2B', 'internlm2-chat', 'internvl2-internlm2'),
            ('InternVL2-4B', 'phi3-chat', 'internvl2-phi3'),
            ('InternVL2-8B', 'internlm2-chat', 'internvl2-internlm2'),
            ('InternVL2-40B', 'Hermes-2', 'internvl2-internlm2'),
            ('InternVL2-Llama3-76B', 'internlm2-chat', 'internvl2-internlm2'),
            ('InternVL-Chat-V1-5', 'internlm2-chat', 'internvl-internlm2'),
            ('Mini-InternVL-Chat-4B-V1-5', 'phi3-chat', 'internvl-phi3'),
            ('InternVL-Chat-V1-2', 'Hermes-2', 'internvl-zh-hermes2')]


@pytest.mark.parametrize('name, template, expected', RELEASED)
def test_released_models_keep_what_upstream_gives_them(checkpoint, name, template, expected):
    path = checkpoint(name, template=template)
    assert best_match_model.__wrapped__(path) == expected
    assert best_match_model(path) == expected


@pytest.mark.parametrize('name, template, stock, expected', [
    ('my-model', 'internlm2-chat', 'base', 'internvl2-internlm2'),
    ('my-model', 'phi3-chat', 'base', 'internvl2-phi3'),
    ('qwen-beds', 'Hermes-2', 'qwen', 'internvl2-internlm2'),
    ('internvl2-phi', 'phi3-chat', 'internvl2-internlm2', 'internvl2-phi3'),
])
def test_renamed_folders(checkpoint, name, template, stock, expected):
    path = checkpoint(name, template=template)
    assert best_match_model.__wrapped__(path) == stock
    assert best_match_model(path) == expected


def test_templates_that_only_newer_releases_have(checkpoint):
    path = checkpoint('my-model', template='internvl2_5')
    assert choose_template(path, {'internvl2_5': MODELS.get('qwen')}) == 'internvl2_5'
    assert choose_template(path, {'qwen': MODELS.get('qwen')}) is None


@pytest.mark.parametrize('config', [dict(template='unheard-of'), dict(),
                                    dict(template='phi3-chat', model_type='phi3')], ids=str)
def test_otherwise_upstream_chooses(tmp_path, config):
    (tmp_path / 'config.json').write_text(json.dumps(dict(dict(model_type='internvl_chat'),
                                                          **config)))
    assert choose_template(str(tmp_path), MODELS.module_dict) is None


@pytest.mark.parametrize('name', ['OpenGVLab/InternVL2-8B', '/no/such/folder/internvl2-4b'])
def test_names_that_are_no_folder(name):
    assert best_match_model(name) == best_match_model.__wrapped__(name)
