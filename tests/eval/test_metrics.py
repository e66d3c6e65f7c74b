"""Metrics against values worked out by hand."""
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.eval.disagreement import compare_answers, mcnemar_exact
from lmdeploy_ext.eval.intervals import f1, proportion
from lmdeploy_ext.eval.metrics import answer_metrics, binary_metrics
from lmdeploy_ext.eval.outcomes import Outcome, positives, scores

NAN = math.nan


def outcome(truth, answer, probability=None, name='x'):
    """An outcome with labels 是/否; without an answer it is an error."""
    if answer is None:
        return Outcome(name, truth, None, None, error='cannot identify image file')
    chosen = 0.9 if probability is None else probability
    other = '否' if answer == '是' else '是'
    return Outcome(name, truth, answer, {answer: chosen, other: 1 - chosen}, text=answer)


def test_wilson_interval_by_hand():
    # 9 of 10, z = 1.959964: centre (0.9 + z^2/20) / (1 + z^2/10) = 0.7889,
    # half width z / (1 + z^2/10) * sqrt(0.9 * 0.1 / 10 + z^2/400) = 0.1937
    estimate = proportion(9, 10)
    assert estimate.value == 0.9
    assert estimate.low == pytest.approx(0.5958, abs=1e-4)
    assert estimate.high == pytest.approx(0.9821, abs=1e-4)


def test_interval_of_all_right_does_not_claim_certainty():
    # lower end n / (n + z^2) = 20 / 23.8415
    estimate = proportion(20, 20)
    assert (estimate.value, estimate.high) == (1, 1)
    assert estimate.low == pytest.approx(0.8389, abs=1e-4)


def test_nothing_counted_has_no_value():
    assert proportion(0, 0).value is None
    assert f1(0, 0, 0).value is None


@pytest.mark.parametrize('count, total', [(3, 2), (-1, 2)])
def test_impossible_counts_are_refused(count, total):
    with pytest.raises(ValueError, match='not a proportion'):
        proportion(count, total)


def test_f1_by_hand():
    # 2 * 8 / (2 * 8 + 1 + 3) = 0.8; F* = 8/12 with Wilson interval (0.3906, 0.8619), mapped by 2x
    # / (1 + x)
    estimate = f1(8, 1, 3)
    assert estimate.value == pytest.approx(0.8)
    assert estimate.low == pytest.approx(0.5618, abs=1e-4)
    assert estimate.high == pytest.approx(0.9258, abs=1e-4)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_intervals_hold_their_estimate(tp, fp, fn):
    for estimate in (proportion(tp, tp + fn), f1(tp, fp, fn)):
        if estimate.value is not None:
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1


def test_binary_metrics_by_hand():
    truth = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0], bool)
    score = np.array([.9, .8, .5, .2, NAN, .7, .1, .0, NAN])
    metrics = binary_metrics(truth, score, 0.5)
    assert (metrics.true_positives, metrics.false_positives) == (3, 1)
    # the missed positive and the one without an answer; the unanswered negative is no true
    # negative
    assert (metrics.false_negatives, metrics.true_negatives, metrics.unanswered) == (2, 2, 2)
    assert metrics.recall.value == 3 / 5
    assert metrics.precision.value == 3 / 4
    assert metrics.f1.value == pytest.approx(6 / 9)
    assert metrics.accuracy.value == 5 / 9


def test_an_error_never_helps():
    good = [outcome('是', '是'), outcome('否', '否')]
    failed = [outcome('是', None), outcome('否', None)]
    metrics = answer_metrics(good + failed, ('是', '否'))
    assert metrics.accuracy.value == 0.5
    assert [label.recall.value for label in metrics.labels] == [0.5, 0.5]
    assert [label.precision.value for label in metrics.labels] == [1, 1]
    assert metrics.confusion.counts == ((1, 0, 1), (0, 1, 1))
    assert metrics.unanswered == 2


def test_three_labels_by_hand():
    answers = [('a', 'a'), ('a', 'a'), ('a', 'b'), ('b', 'b'), ('b', 'c'), ('c', 'a')]
    outcomes = [
        Outcome(str(i), truth, answer, {
            'a': 0,
            'b': 0,
            'c': 0,
            answer: 1
        }) for i, (truth, answer) in enumerate(answers)
    ]
    metrics = answer_metrics(outcomes, ('a', 'b', 'c'))
    assert metrics.confusion.counts == ((2, 1, 0, 0), (0, 1, 1, 0), (1, 0, 0, 0))
    assert metrics.accuracy.value == 3 / 6
    by_label = {label.label: label for label in metrics.labels}
    assert (by_label['a'].recall.value, by_label['a'].precision.value) == (2 / 3, 2 / 3)
    assert (by_label['b'].recall.value, by_label['b'].precision.value) == (1 / 2, 1 / 2)
    assert (by_label['c'].recall.value, by_label['c'].precision.value) == (0, 0)
    assert metrics.macro_f1 == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert metrics.confusion.shares[0][1].value == 1 / 3


def test_a_label_that_nobody_listed_is_named():
    with pytest.raises(ValueError, match="'x7' has the label '也许'.*--labels"):
        answer_metrics([outcome('也许', '是', name='x7')], ('是', '否'))


def test_scores_and_truth_of_outcomes():
    outcomes = [outcome('是', '是', .9), outcome('否', '否', .8), outcome('是', None)]
    assert positives(outcomes, '是').tolist() == [True, False, True]
    np.testing.assert_allclose(scores(outcomes, '是'), [.9, .2, NAN])


def test_mcnemar_by_hand():
    # 1 against 7 of 8: 2 * (C(8,0) + C(8,1)) / 2^8
    assert mcnemar_exact(1, 7) == pytest.approx(2 * 9 / 256)
    assert mcnemar_exact(7, 1) == mcnemar_exact(1, 7)
    assert mcnemar_exact(4, 4) == pytest.approx(1)
    assert mcnemar_exact(0, 0) == 1


def test_disagreement_counts_pairs_of_images():
    first = [
        outcome('是', '是', name='1'),
        outcome('是', '否', name='2'),
        outcome('否', '否', name='3'),
        outcome('否', None, name='4'),
        outcome('否', '是', name='5')
    ]
    second = [
        outcome('是', '是', name='1'),
        outcome('是', '是', name='2'),
        outcome('否', None, name='3'),
        outcome('否', None, name='4'),
        outcome('否', '否', name='5')
    ]
    result = compare_answers(first, second, list_at_most=2)
    assert (result.both_right, result.only_first_right, result.only_second_right,
            result.both_wrong) == (1, 1, 2, 1)
    assert (result.changed, result.changed_ids) == (3, ('2', '3'))
    assert result.p_value == pytest.approx(1)


def test_other_images_cannot_be_compared():
    with pytest.raises(ValueError, match='another order'):
        compare_answers([outcome('是', '是', name='1')], [outcome('是', '是', name='2')])
