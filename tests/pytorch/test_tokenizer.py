"""Answers as text, piece by piece: long prompts in front of them, and ids above the tokenizer's
vocabulary, which an output layer may be wide enough to give."""
import hypothesis.strategies as st
import pytest
from hypothesis import given
from lmdeploy.tokenizer import DetokenizeState, HuggingFaceTokenizer

from lmdeploy_ext.models.checkpoint import write_checkpoint


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    write_checkpoint(folder, 'tiny')
    return HuggingFaceTokenizer(str(folder))


def detokenize(tokenizer, pieces, prompt=(1, 2), by=None, **fields):
    """Text of pieces that arrive one after another, behind a prompt."""
    ids, state, text = [*prompt], DetokenizeState(len(prompt)), ''
    by = by or HuggingFaceTokenizer.detokenize_incrementally
    for piece in pieces:
        ids = ids + piece
        new, state = by(tokenizer, ids, state, **fields)
        assert state.ids_offset == len(ids)
        text += new
    return text


STOCK = HuggingFaceTokenizer.detokenize_incrementally.__wrapped__


def test_stock_raises(tokenizer):
    with pytest.raises(TypeError):
        STOCK(tokenizer, [len(tokenizer.model)], DetokenizeState())


@given(prompt=st.lists(st.integers(0, 300), max_size=80), data=st.data(),
       skip=st.booleans())
def test_behind_any_prompt_the_text_is_stocks(tokenizer, prompt, data, skip):
    """Ids are bytes for the most part, so pieces and prompts end inside characters."""
    ids = st.integers(0, len(tokenizer.model) - 1)
    encoded = st.text(min_size=1, max_size=4).map(lambda text: tokenizer.encode(text, False))
    pieces = data.draw(st.lists(st.lists(ids, max_size=3) | encoded, max_size=6))
    found, expected = (detokenize(tokenizer, pieces, prompt, by, skip_special_tokens=skip)
                       for by in (None, STOCK))
    assert found == expected


def test_a_long_prompt_is_not_turned_to_text(tokenizer, monkeypatch):
    seen, convert = [], tokenizer.model.convert_ids_to_tokens

    def counted(ids, **options):
        seen.append(len(ids))
        return convert(ids, **options)

    monkeypatch.setattr(tokenizer.model, 'convert_ids_to_tokens', counted)
    hello = tokenizer.encode('Yes or No', add_bos=False)
    assert detokenize(tokenizer, [[token] for token in hello], [0] * 3000) == 'Yes or No'
    assert sum(seen) < 100


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
