"""Answers as text, piece by piece: long prompts in front of them, and ids above the tokenizer's
vocabulary, which an output layer may be wide enough to give."""
import io

import hypothesis.strategies as st
import pytest
import sentencepiece
from hypothesis import given
from lmdeploy.tokenizer import DetokenizeState, HuggingFaceTokenizer
from transformers import LlamaTokenizer, LlamaTokenizerFast

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


@pytest.fixture(scope='module', params=[LlamaTokenizer, LlamaTokenizerFast])
def of_pieces(request, tmp_path_factory):
    """Of words that bring their space along, and bytes, as most InternVL2 models have it."""
    folder, model = tmp_path_factory.mktemp('pieces'), io.BytesIO()
    text = 'yes or no, is there a bed in the room? a room of beds is no shop front'
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text] * 20), model_writer=model, vocab_size=300, model_type='bpe',
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2)
    (folder / 'tokenizer.model').write_bytes(model.getvalue())
    tokenizer = request.param(str(folder / 'tokenizer.model'), legacy=False)
    tokenizer.add_special_tokens({'additional_special_tokens': ['<img>', '</img>']})
    tokenizer.add_tokens(['[UNUSED]'])
    write_checkpoint(folder, 'tiny')
    wrapped = HuggingFaceTokenizer(str(folder))
    wrapped.model = tokenizer
    return wrapped


@given(data=st.data(), skip=st.booleans())
def test_behind_any_prompt_of_pieces_the_text_is_stocks(of_pieces, data, skip):
    """Also where the prompt ends with many special tokens, or within a character of bytes."""
    size = len(of_pieces.model)
    encoded = st.sampled_from([' a bed', 'yes', '房间里', '是', 'é', '🙂']).map(
        lambda text: of_pieces.model.encode(text, add_special_tokens=False))
    run = st.tuples(st.sampled_from([0, 1, size - 3, size - 2, size - 1, 3 + 0xE4, 3 + 0xBD]),
                    st.sampled_from([1, 20, 31, 32, 33, 50])).map(lambda pair: [pair[0]] * pair[1])
    anything = st.lists(st.integers(0, size - 1), max_size=3) | encoded
    prompt = sum(data.draw(st.lists(anything | run, max_size=4)), [])
    pieces = data.draw(st.lists(anything, max_size=6))
    found, expected = (detokenize(of_pieces, pieces, prompt, by, skip_special_tokens=skip)
                       for by in (None, STOCK))
    assert found == expected


@pytest.mark.parametrize('prompt', [[0] * 40, [290] + [0] * 40, [0] * 40 + [290],
                                    [290] + [3 + 0xE6, 3 + 0x88, 3 + 0xBF] * 20], ids=[
                                        'special', 'text, special', 'special, text', 'bytes'])
def test_the_first_piece_is_stocks(of_pieces, prompt):
    pieces = [of_pieces.model.convert_tokens_to_ids(tokens) for tokens in (
        ['▁a', '▁bed'], ['<0xE6>', '<0x88>', '<0xBF>'])]
    for piece in pieces:
        found, expected = (detokenize(of_pieces, [piece], prompt, by) for by in (None, STOCK))
        assert found == expected


def test_a_long_prompt_is_not_turned_to_text(tokenizer, monkeypatch):
    seen, convert = [], tokenizer.model.convert_ids_to_tokens

    def counted(ids, **options):
        seen.append(1 if isinstance(ids, int) else len(ids))
        return convert(ids, **options)

    monkeypatch.setattr(tokenizer.model, 'convert_ids_to_tokens', counted)
    hello = tokenizer.encode('Yes or No', add_bos=False)
    prompt = hello + [0] * 3000 + hello
    assert detokenize(tokenizer, [[token] for token in hello], prompt) == 'Yes or No'
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
