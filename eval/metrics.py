"""Recall, precision, F1, accuracy and confusion, each with a 95 % interval.

An image without an answer (an error row) counts as one that got no label: it stays in the
denominator of recall and accuracy, so that errors cannot improve them, and in no numerator and no
precision. Its number is reported beside the figures as `unanswered`.
"""
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

import numpy as np

from .intervals import Estimate, f1, proportion
from .outcomes import Outcome


@dataclass(frozen=True)
class BinaryMetrics:
    """Figures of the positive label.

    Attributes:
        threshold: images whose positive probability reaches it were called positive.
        accuracy: images called rightly, of all images.
        true_positives, false_positives, false_negatives, true_negatives: counts of answered
            images, except that `false_negatives` holds the unanswered positive images too.
        unanswered: images without an answer, positive or not.
    """
    threshold: float
    recall: Estimate
    precision: Estimate
    f1: Estimate
    accuracy: Estimate
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int
    unanswered: int


@dataclass(frozen=True)
class LabelMetrics:
    """One label against all others, from the answers as given."""
    label: str
    recall: Estimate
    precision: Estimate
    f1: Estimate


@dataclass(frozen=True)
class Confusion:
    """Counts of (true label, answer).

    Attributes:
        labels: the rows, and the first columns.
        counts: [labels][labels + 1]; the last column counts the images without an answer.
        shares: the same as shares of their row, with intervals.
    """
    labels: Tuple[str, ...]
    counts: Tuple[Tuple[int, ...], ...]
    shares: Tuple[Tuple[Estimate, ...], ...]


@dataclass(frozen=True)
class AnswerMetrics:
    """Figures over all labels, from the answers as given."""
    accuracy: Estimate
    labels: Tuple[LabelMetrics, ...]
    macro_f1: Optional[float]
    confusion: Confusion
    unanswered: int


def binary_metrics(truth: np.ndarray, score: np.ndarray, threshold: float) -> BinaryMetrics:
    """Figures at a threshold.

    Args:
        truth: bool [images], whether the image carries the positive label.
        score: float [images], its probability, NaN where there is no answer.
        threshold: an image is called positive where its score is at least this.
    """
    answered = ~np.isnan(score)
    called = answered & (score >= threshold)
    tp = int(np.sum(truth & called))
    fp = int(np.sum(~truth & called))
    fn = int(np.sum(truth & ~called))
    tn = int(np.sum(~truth & answered & ~called))
    return BinaryMetrics(threshold=threshold,
                         recall=proportion(tp, tp + fn),
                         precision=proportion(tp, tp + fp),
                         f1=f1(tp, fp, fn),
                         accuracy=proportion(tp + tn, len(truth)),
                         true_positives=tp,
                         false_positives=fp,
                         false_negatives=fn,
                         true_negatives=tn,
                         unanswered=int(np.sum(~answered)))


def answer_metrics(outcomes: Sequence[Outcome], labels: Sequence[str]) -> AnswerMetrics:
    """Figures of every label from the answers as given (the most probable label)."""
    confusion = confusion_of(outcomes, labels)
    counts = np.array(confusion.counts, int).reshape(len(labels), len(labels) + 1)
    of_label = tuple(_label_metrics(label, counts, row) for row, label in enumerate(labels))
    f1_values = [metrics.f1.value for metrics in of_label if metrics.f1.value is not None]
    return AnswerMetrics(accuracy=proportion(int(np.trace(counts)), int(counts.sum())),
                         labels=of_label,
                         macro_f1=float(np.mean(f1_values)) if f1_values else None,
                         confusion=confusion,
                         unanswered=int(counts[:, -1].sum()))


def confusion_of(outcomes: Sequence[Outcome], labels: Sequence[str]) -> Confusion:
    """Count (true label, answer) pairs.

    Raises:
        ValueError: a true label or an answer is none of `labels`.
    """
    row_of = {label: row for row, label in enumerate(labels)}
    column_of = {**row_of, None: len(labels)}
    counts = np.zeros((len(labels), len(labels) + 1), int)
    for outcome in outcomes:
        if outcome.truth not in row_of or outcome.answer not in column_of:
            raise ValueError(
                f'image {outcome.id!r} has the label {outcome.truth!r} and the answer '
                f'{outcome.answer!r}; expected {", ".join(labels)}: pass all labels with --labels')
        counts[row_of[outcome.truth], column_of[outcome.answer]] += 1
    shares = tuple(tuple(proportion(int(cell), int(row.sum())) for cell in row) for row in counts)
    return Confusion(tuple(labels), tuple(tuple(int(cell) for cell in row) for row in counts),
                     shares)


def _label_metrics(label: str, counts: np.ndarray, row: int) -> LabelMetrics:
    """One label's figures from the confusion counts, int [labels, labels + 1]."""
    right, of_label, called = int(counts[row, row]), int(counts[row].sum()), int(counts[:,
                                                                                        row].sum())
    return LabelMetrics(label=label,
                        recall=proportion(right, of_label),
                        precision=proportion(right, called),
                        f1=f1(right, called - right, of_label - right))
