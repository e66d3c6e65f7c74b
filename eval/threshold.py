"""Precision-recall curve, average precision, and the threshold for a wanted recall."""
import math
from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve


@dataclass(frozen=True)
class Curve:
    """Precision and recall at each threshold, in order of rising threshold.

    Attributes:
        thresholds, precision, recall: equally long; empty where no positive image was answered.
        average_precision: the mean of precision over steps of recall; None without positive
            images.
    """
    thresholds: Tuple[float, ...]
    precision: Tuple[float, ...]
    recall: Tuple[float, ...]
    average_precision: Optional[float]


def curve(truth: np.ndarray, score: np.ndarray) -> Curve:
    """The precision-recall curve over all thresholds.

    Unanswered positive images are misses at every threshold: the curve of the answered images is
    drawn in to the recall that they can reach, and average precision, a sum over steps of recall,
    shrinks alike.

    Args:
        truth: bool [images], whether the image carries the positive label.
        score: float [images], its probability, NaN where there is no answer.
    """
    answered = ~np.isnan(score)
    total, reachable = int(truth.sum()), int(truth[answered].sum())
    if reachable == 0:
        return Curve((), (), (), 0.0 if total else None)
    precision, recall, thresholds = precision_recall_curve(truth[answered], score[answered])
    share = reachable / total
    average = float(average_precision_score(truth[answered], score[answered])) * share
    # scikit-learn appends a last point (precision 1, recall 0) that belongs to no threshold.
    return Curve(tuple(thresholds.tolist()), tuple(precision[:-1].tolist()),
                 tuple((recall[:-1] * share).tolist()), average)


def threshold_for_recall(truth: np.ndarray, score: np.ndarray, target: float) -> Optional[float]:
    """The highest threshold at which recall is at least `target`, hence the fewest false alarms.

    It is always the score of one of the positive images. Choose it on calibration images, never on
    those that the figures are reported for.

    Args:
        truth: bool [images], whether the image carries the positive label.
        score: float [images], its probability, NaN where there is no answer.
        target: wanted recall, above 0, at most 1.

    Returns:
        The threshold; None where no threshold reaches the target: no positive image, or too many
        without an answer.

    Raises:
        ValueError: a target outside (0, 1].
    """
    if not 0 < target <= 1:
        raise ValueError(
            f'a target recall of {target} cannot be reached; expected above 0 and at most 1')
    total = int(truth.sum())
    descending = np.sort(score[truth & ~np.isnan(score)])[::-1]
    # The tolerance keeps 0.95 * 20 = 19.000000000000004 at 19.
    needed = math.ceil(target * total - 1e-9)
    if total == 0 or needed > len(descending):
        return None
    return float(descending[needed - 1])
