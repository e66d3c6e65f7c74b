"""Labels, and their probabilities from an answer's first token."""
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.classify.errors import ImageError, LabelError
from lmdeploy_ext.classify.labels import parse_labels, resolve_labels
from lmdeploy_ext.classify.probability import label_probabilities, most_probable
from lmdeploy_ext.classify.tally import begins_with_label

from .fakes import YES_NO, FakeTokenizer


def test_labels_are_parsed_with_either_comma():
    assert parse_labels('是, 否') == parse_labels('是，否') == ('是', '否')


@pytest.mark.parametrize('text, message', [
    ('是,,否', 'an empty label'),
    ('', 'an empty label'),
    ('是,否,', 'an empty label'),
    ('是', 'one label alone'),
    ('是,否,是', "the label '是' stands twice"),
])
def test_labels_that_name_nothing_are_refused(text, message):
    with pytest.raises(LabelError, match=message):
        parse_labels(text)


def test_labels_that_share_their_first_token_are_refused():
    with pytest.raises(LabelError, match="'有三张床' and '有两张床' begin with the same token"):
        resolve_labels(('没有', '有三张床', '有两张床'), FakeTokenizer())
    labels = resolve_labels(('没有', '有三张床'), FakeTokenizer())
    assert labels.names == ('没有', '有三张床') and labels.longest == 4
    assert labels.labels[0].token == ord('没') and labels.labels[0].piece == '没'.encode()


def test_probabilities_are_normalised_over_the_labels():
    # 0.3 and 0.1 of the whole vocabulary are 3/4 and 1/4 of the labels
    logprobs = {11: math.log(0.3), 12: math.log(0.1), 13: math.log(0.6)}
    assert label_probabilities(logprobs, YES_NO) == {'是': 0.75, '否': 0.25}
    assert most_probable({'是': 0.75, '否': 0.25}) == '是'


def test_a_server_names_tokens_by_their_vocabulary_piece():
    logprobs = {label.piece: math.log(share) for label, share in zip(YES_NO.labels, (0.1, 0.3))}
    assert label_probabilities(logprobs, YES_NO) == {'是': 0.25, '否': 0.75}


def test_a_label_that_was_not_reported_gets_the_smallest_probability_that_was():
    logprobs = {11: math.log(0.9), 13: math.log(0.06), 14: math.log(0.02)}
    probabilities = label_probabilities(logprobs, YES_NO)
    assert probabilities['否'] == pytest.approx(0.02 / 0.92)


def test_without_any_label_among_the_candidates_there_is_no_answer():
    message = "the answer 'Sure' is no label, nor is any among the 2 most probable first tokens"
    with pytest.raises(ImageError, match=message):
        label_probabilities({13: -0.1, 14: -2.0}, YES_NO, 'Sure')


@pytest.mark.parametrize('logprobs', [{11: math.nan, 12: 0.0}, {11: -math.inf, 12: -math.inf}])
def test_log_probabilities_that_are_no_numbers_are_no_answer(logprobs):
    with pytest.raises(ImageError, match='expected numbers'):
        label_probabilities(logprobs, YES_NO)


def test_a_probability_of_zero_is_a_probability():
    assert label_probabilities({11: 0.0, 12: -math.inf}, YES_NO) == {'是': 1.0, '否': 0.0}


@given(st.lists(st.floats(-80, 0), min_size=2, max_size=2), st.floats(-1000, 1000))
def test_probabilities_sum_to_one_and_ignore_a_common_constant(values, constant):
    probabilities = label_probabilities(dict(zip((11, 12), values)), YES_NO)
    moved = label_probabilities({11: values[0] + constant, 12: values[1] + constant}, YES_NO)
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-8)
    assert moved == pytest.approx(probabilities, abs=1e-8)


@pytest.mark.parametrize('text, expected', [
    ('是', True),
    ('是的，有三张床', True),
    (' 是', True),
    ('不是', False),
    ('', False),
])
def test_whether_a_text_follows_the_prompt(text, expected):
    assert begins_with_label(text, ('是', '否')) is expected


def test_a_text_that_breaks_off_within_a_label_follows_the_prompt():
    assert begins_with_label('有三', ('有三张床', '没有'))
