"""InternLM2's tokenizer from a folder without Python files."""
import json
import shutil

import pytest
import sentencepiece
from transformers import AutoTokenizer

from lmdeploy_ext.models.internlm2_tokenizer import InternLM2Tokenizer

ADDED = ('<|im_end|>', '<|im_start|>', '<img>', '</img>', '<IMG_CONTEXT>')
LINES = ('Are there three or more beds , or a bunk bed ?', "It is n't a bed .",
         '图中是否有三张或更多的床')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Tokenizer files as InternVL2-2B and 8B have them, with a small sentencepiece model."""
    path = tmp_path_factory.mktemp('internlm2')
    lines = path / 'lines.txt'
    lines.write_text('\n'.join(LINES * 20))
    sentencepiece.SentencePieceTrainer.train(input=str(lines),
                                             model_prefix=str(path / 'tokenizer'),
                                             model_type='bpe',
                                             vocab_size=340,
                                             byte_fallback=True,
                                             character_coverage=1.0,
                                             remove_extra_whitespaces=False,
                                             normalization_rule_name='identity',
                                             minloglevel=2)
    special = {'lstrip': False, 'normalized': False, 'rstrip': False, 'single_word': False}
    tokens = ['<unk>', '<s>', '</s>'] + [None] * 337 + list(ADDED)
    decoder = {
        str(i): dict(special, content=token, special=True)
        for i, token in enumerate(tokens) if token
    }
    (path / 'tokenizer_config.json').write_text(
        json.dumps({
            'tokenizer_class': 'InternLM2Tokenizer',
            'add_bos_token': True,
            'add_eos_token': False,
            'added_tokens_decoder': decoder,
            'additional_special_tokens': list(ADDED),
            'bos_token': '<s>',
            'eos_token': '</s>',
            'pad_token': '</s>',
            'unk_token': '<unk>',
            'clean_up_tokenization_spaces': False,
            'model_max_length': 8192
        }))
    (path / 'config.json').write_text(
        json.dumps({
            'model_type': 'internlm2',
            'architectures': ['InternLM2ForCausalLM']
        }))
    return path


@pytest.fixture(scope='module')
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope='module')
def pieces(folder):
    """The sentencepiece model itself."""
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / 'tokenizer.model'))


def test_the_folder_gives_our_class(tokenizer):
    assert type(tokenizer) is InternLM2Tokenizer
    assert len(tokenizer) == 345 and tokenizer.vocab_size == 340


def test_an_auto_map_left_over_from_removed_python_files_does_no_harm(folder, tmp_path):
    """Where remote code is not trusted; where it is, transformers insists on the files."""
    copy = shutil.copytree(folder, tmp_path / 'copy')
    fields = json.loads((copy / 'tokenizer_config.json').read_text())
    fields['auto_map'] = {'AutoTokenizer': ['tokenization_internlm2.InternLM2Tokenizer', None]}
    (copy / 'tokenizer_config.json').write_text(json.dumps(fields))
    assert type(AutoTokenizer.from_pretrained(copy)) is InternLM2Tokenizer


@pytest.mark.parametrize('text', ['three beds', '  two  spaces', '图中是否有床', 'é🦜', ''])
def test_plain_text_is_sentencepieces_ids_after_a_bos(tokenizer, pieces, text):
    assert tokenizer.encode(text) == [1] + pieces.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == pieces.encode(text)


def test_special_tokens_split_the_text(tokenizer, pieces):
    text = '<|im_start|>user\n<img></img>\nbed<|im_end|>'
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [341, *pieces.encode('user\n'), 342, 343, *pieces.encode('\nbed'), 340]


@pytest.mark.parametrize('text', ['three or more beds', '图中是否有床', 'é🦜', ' leading'])
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


def test_decoding_closes_up_punctuation_as_the_published_one_does(tokenizer, pieces):
    """Llama's tokenizer leaves these spaces; the published InternLM2 one removes them."""
    text = "It is n't a bed ."
    assert pieces.decode(pieces.encode(text)) == text
    assert tokenizer.decode(pieces.encode(text)) == "It isn't a bed."


def test_decoding_does_not_change_the_tokens_it_is_given(tokenizer):
    tokens = tokenizer.tokenize('three beds')
    before = list(tokens)
    assert tokenizer.convert_tokens_to_string(tokens) == 'three beds'
    assert tokens == before
    assert tokenizer.convert_tokens_to_string([]) == ''


def test_saved_and_loaded_again(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is InternLM2Tokenizer
    text = '<img>图</img> three beds'
    assert again.encode(text) == tokenizer.encode(text)
