"""Ids above the tokenizer's vocabulary, which an output layer may be wide enough to give."""
import pytest
from lmdeploy.tokenizer import DetokenizeState, HuggingFaceTokenizer

from lmdeploy_ext.models.checkpoint import write_checkpoint


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    write_checkpoint(folder, 'tiny')
    return HuggingFaceTokenizer(str(folder))


def detokenize(tokenizer, pieces, **fields):
    """Text of pieces that arrive one after another, behind a prompt of two tokens."""
    ids, state, text = [1, 2], DetokenizeState(2), ''
    for piece in pieces:
        ids = ids + piece
        new, state = tokenizer.detokenize_incrementally(ids, state, **fields)
        assert state.ids_offset == len(ids)
        text += new
    return text


def test_stock_raises(tokenizer):
    stock = HuggingFaceTokenizer.detokenize_incrementally.__wrapped__
    with pytest.raises(TypeError):
        stock(tokenizer, [len(tokenizer.model)], DetokenizeState())


def test_padding_ids_have_no_text(tokenizer):
    above = len(tokenizer.model)
    hello = tokenizer.encode('Yes or No', add_bos=False)
    expected = detokenize(tokenizer, [[token] for token in hello])
    assert expected == 'Yes or No'
    scattered = [[above], *([token, above + 5] for token in hello), [above, above]]
    assert detokenize(tokenizer, scattered) == expected
    assert detokenize(tokenizer, [[above] * 3]) == ''


def test_special_tokens_are_still_special(tokenizer):
    end = tokenizer.eos_token_id
    assert detokenize(tokenizer, [[len(tokenizer.model), end]], skip_special_tokens=True) == ''
    shown = detokenize(tokenizer, [[end, len(tokenizer.model)]], skip_special_tokens=False)
    assert shown == '<|im_end|>'
