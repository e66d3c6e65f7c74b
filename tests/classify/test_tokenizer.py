"""The first token of an answer, where the answer begins."""
import json

import pytest
import sentencepiece

from lmdeploy_ext.classify.errors import EngineError, LabelError
from lmdeploy_ext.classify.labels import resolve_labels
from lmdeploy_ext.classify.tokenizer import ModelTokenizer, has_tokenizer

from .checkpoint import write_yes_no_checkpoint

TEMPLATE = 'internvl2-internlm2'


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return str(write_yes_no_checkpoint(tmp_path_factory.mktemp('tokenizer') / 'model'))


@pytest.fixture(scope='module')
def sentencepiece_model(tmp_path_factory):
    """A Llama tokenizer: alone, each word gets a space in front that it lacks within a text."""
    path = tmp_path_factory.mktemp('llama')
    (path / 'lines.txt').write_text('图中有床吗？是 否\nassistant\nyes no\n' * 20)
    sentencepiece.SentencePieceTrainer.train(input=str(path / 'lines.txt'),
                                             model_prefix=str(path / 'tokenizer'),
                                             model_type='bpe',
                                             vocab_size=300,
                                             byte_fallback=True,
                                             character_coverage=1.0,
                                             minloglevel=2)
    (path / 'tokenizer_config.json').write_text(
        json.dumps({
            'tokenizer_class': 'LlamaTokenizer',
            'legacy': False,
            'bos_token': '<s>',
            'eos_token': '</s>',
            'unk_token': '<unk>',
            'add_bos_token': True
        }))
    (path / 'config.json').write_text(
        json.dumps({
            'model_type': 'llama',
            'architectures': ['LlamaForCausalLM']
        }))
    return str(path)


def test_a_label_is_spelled_as_the_vocabulary_has_it(model):
    tokenizer = ModelTokenizer(model, TEMPLATE)
    labels = resolve_labels(('是', '否'), tokenizer)
    assert [label.piece.decode() for label in labels.labels] == ['æĺ¯', 'åĲ¦']
    assert labels.longest == 1
    # three bytes without a merge
    assert len(tokenizer.answer_tokens('猫')) == 3


def test_a_label_has_no_space_in_front_that_an_answer_would_not_have(sentencepiece_model):
    tokenizer = ModelTokenizer(sentencepiece_model, TEMPLATE)
    pieces = [tokenizer.piece(tokenizer.answer_tokens(name)[0]).decode() for name in ('是', '否')]
    assert not any(piece.startswith('▁') for piece in pieces)
    alone = tokenizer._tokenizer.encode('是', add_bos=False)
    assert tokenizer.piece(alone[0]).decode().startswith('▁'), 'or the test shows nothing'


def test_labels_that_begin_alike_are_refused(model):
    with pytest.raises(LabelError, match="'猫' and '猬' begin with the same token"):
        resolve_labels(('猫', '猬'), ModelTokenizer(model, TEMPLATE))


def test_the_chat_template_may_be_a_json_file(model, tmp_path):
    path = tmp_path / 'template.json'
    path.write_text(
        json.dumps({
            'model_name': 'own',
            'user': 'Q: ',
            'eoh': '\n',
            'assistant': 'A:'
        }))
    assert len(ModelTokenizer(model, str(path)).answer_tokens('是')) == 1


def test_a_chat_template_that_is_not_there(model, monkeypatch):
    with pytest.raises(EngineError,
                       match="unknown chat template 'internvl2-internlm'.*did you "
                       "mean internvl2-internlm2?"):
        ModelTokenizer(model, 'internvl2-internlm')
    import lmdeploy.model
    monkeypatch.setattr(lmdeploy.model, 'best_match_model', lambda path: 'base')
    with pytest.raises(EngineError,
                       match='no chat template is known for .*; give --chat-template'):
        ModelTokenizer(model)


def test_a_folder_without_a_tokenizer(tmp_path, model):
    (tmp_path / 'config.json').write_text('{"model_type": "llama", "architectures": ["X"]}')
    with pytest.raises(EngineError, match='no usable tokenizer in'):
        ModelTokenizer(str(tmp_path), TEMPLATE)
    assert has_tokenizer(model) and not has_tokenizer(str(tmp_path))
