"""Precision-recall curve and the threshold for a wanted recall."""
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.eval.metrics import binary_metrics
from lmdeploy_ext.eval.threshold import curve, threshold_for_recall

NAN = math.nan
TRUTH = np.array([1, 1, 0, 1, 0], bool)
SCORE = np.array([.9, .8, .7, .6, .1])


def test_curve_by_hand():
    result = curve(TRUTH, SCORE)
    assert result.thresholds == (.1, .6, .7, .8, .9)
    assert result.recall == pytest.approx((1, 1, 2 / 3, 2 / 3, 1 / 3))
    assert result.precision == pytest.approx((3 / 5, 3 / 4, 2 / 3, 1, 1))
    # steps of recall of a third each, at precision 1, 1 and 3/4
    assert result.average_precision == pytest.approx((1 + 1 + 3 / 4) / 3)


def test_unanswered_positives_stay_misses_on_the_curve():
    result = curve(np.append(TRUTH, True), np.append(SCORE, NAN))
    assert max(result.recall) == pytest.approx(3 / 4)
    assert result.average_precision == pytest.approx((1 + 1 + 3 / 4) / 4)


def test_no_positive_image_has_no_curve():
    assert curve(np.array([False, False]), np.array([.1, .2])).average_precision is None
    assert curve(np.array([True, False]), np.array([NAN, .2])).average_precision == 0


@pytest.mark.parametrize('target, threshold', [(1 / 3, .9), (.5, .8), (2 / 3, .8), (.95, .6),
                                               (1, .6)])
def test_threshold_is_the_highest_that_reaches_the_target(target, threshold):
    assert threshold_for_recall(TRUTH, SCORE, target) == threshold


def test_target_times_count_is_not_rounded_up():
    truth = np.ones(20, bool)
    score = np.arange(1, 21) / 100
    assert threshold_for_recall(truth, score, 0.95) == .02


def test_a_target_beyond_the_answered_images_has_no_threshold():
    assert threshold_for_recall(np.array([True, True]), np.array([.9, NAN]), .95) is None
    assert threshold_for_recall(np.array([False]), np.array([.9]), .95) is None


@pytest.mark.parametrize('target', [0, -1, 1.01])
def test_an_impossible_target_is_refused(target):
    with pytest.raises(ValueError, match='target recall'):
        threshold_for_recall(TRUTH, SCORE, target)


answers = st.lists(st.tuples(st.booleans(), st.one_of(st.just(NAN), st.floats(0, 1))),
                   min_size=1,
                   max_size=60)


@given(answers)
def test_recall_falls_as_the_threshold_rises(images):
    truth, score = np.array([t for t, _ in images], bool), np.array([s for _, s in images])
    result = curve(truth, score)
    assert len(result.thresholds) == len(result.precision) == len(result.recall)
    assert all(a >= b for a, b in zip(result.recall, result.recall[1:]))
    for threshold, recall, precision in zip(result.thresholds, result.recall, result.precision):
        metrics = binary_metrics(truth, score, threshold)
        assert metrics.recall.value == pytest.approx(recall)
        assert metrics.precision.value == pytest.approx(precision)


@given(answers, st.floats(.05, 1))
def test_the_threshold_keeps_its_promise_and_is_tight(images, target):
    truth, score = np.array([t for t, _ in images], bool), np.array([s for _, s in images])
    threshold = threshold_for_recall(truth, score, target)
    if threshold is not None:
        assert binary_metrics(truth, score, threshold).recall.value >= target - 1e-9
        higher = score[truth & (score > threshold)]
        if len(higher):
            assert binary_metrics(truth, score, float(higher.min())).recall.value < target
