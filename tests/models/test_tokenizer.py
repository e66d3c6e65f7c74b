"""The tokenizer builder."""
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lmdeploy_ext.models.tokenizer import SPECIAL_TOKENS, build_tokenizer, save_tokenizer

LINES = ('Are there three or more beds, or a bunk bed?', '图中是否有三张或更多的床，或者上下铺？', 'bed bed')
TOKENIZER = build_tokenizer(LINES, 400, single_tokens=('是', '否', 'Yes', 'No'))


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize('text', ['e\u0301 is not \u00e9', 'a  b \t\n c .', '🦜 , \x00', '▁ Ġ'])
def test_awkward_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_labels_are_one_token_each_and_differ():
    ids = [TOKENIZER.encode(word) for word in ('是', '否', 'Yes', 'No')]
    assert all(len(i) == 1 for i in ids)
    assert len({i[0] for i in ids}) == 4


def test_special_tokens_are_whole_wherever_they_stand():
    text = '图<img><IMG_CONTEXT></img>bed<|im_end|>'
    tokens = TOKENIZER.convert_ids_to_tokens(TOKENIZER.encode(text))
    assert [token for token in tokens if token in SPECIAL_TOKENS] == \
        ['<img>', '<IMG_CONTEXT>', '</img>', '<|im_end|>']
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=True) == '图bed'


def test_special_tokens_come_last_and_the_turn_ends_with_one():
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == \
        list(range(len(TOKENIZER) - len(SPECIAL_TOKENS), len(TOKENIZER)))
    assert (TOKENIZER.eos_token, TOKENIZER.bos_token, TOKENIZER.pad_token) == \
        ('<|im_end|>', '<s>', '</s>')


def test_training_is_repeatable():
    again = build_tokenizer(LINES, 400, single_tokens=('是', '否', 'Yes', 'No'))
    assert again.get_vocab() == TOKENIZER.get_vocab()


def test_add_bos():
    tokenizer = build_tokenizer(LINES, 300, add_bos=True)
    ids = tokenizer.encode('bed')
    assert ids[0] == tokenizer.bos_token_id and tokenizer.decode(ids[1:]) == 'bed'
    assert tokenizer.encode('bed', add_special_tokens=False) == ids[1:]


def test_padding_gives_every_id_of_a_wide_head_a_token():
    tokenizer = build_tokenizer(LINES, 400, pad_to=1000)
    assert len(tokenizer) == 1000
    assert all(isinstance(t, str) for t in tokenizer.convert_ids_to_tokens(list(range(1000))))
    plain = build_tokenizer(LINES, 400)
    assert tokenizer.encode(LINES[0]) == plain.encode(LINES[0])


@pytest.mark.parametrize('options, message', [
    (dict(vocab_size=262), 'vocab_size is 262; it must be at least 263'),
    (dict(vocab_size=400, pad_to=270), 'pad_to is 270, but the tokenizer has'),
    (dict(vocab_size=264, single_tokens=('是', '否')), "no room to make '是' one token"),
])
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(LINES, **options)


def test_saved_files_are_read_by_both_supported_releases(tmp_path):
    """tokenizers 0.19 reads merges only in the older form, one string a merge."""
    save_tokenizer(TOKENIZER, tmp_path)
    merges = json.loads((tmp_path / 'tokenizer.json').read_text())['model']['merges']
    assert merges and all(isinstance(merge, str) for merge in merges)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = '图中<img>是 bed\n'
    assert loaded.encode(text) == TOKENIZER.encode(text)
    assert loaded.eos_token_id == TOKENIZER.eos_token_id
    assert len(loaded) == len(TOKENIZER)
