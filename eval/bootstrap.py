"""Differences of recall and precision between variants on the same images, with 95 % intervals.

The images are resampled with replacement, all variants alike (the percentile bootstrap of Efron
and Tibshirani 1993, An Introduction to the Bootstrap, chapters 8 and 13). Images on which all
variants agree are counted, not listed, so that the size of the set does not matter.
"""
from dataclasses import dataclass
from typing import Optional

import numpy as np

from .intervals import CONFIDENCE

TIMES = 4000
SEED = 0  # scoring again gives the same interval


@dataclass(frozen=True)
class Points:
    """A difference in percentage points and its 95 % interval."""
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Resampled:
    """Recall and precision of the images as they are, in row 0, and of each resample of them.

    Attributes:
        recall, precision: float `[1 + TIMES, variants]`, NaN where nothing was counted.
    """
    recall: np.ndarray
    precision: np.ndarray


def resample(truth: np.ndarray, called: np.ndarray) -> Resampled:
    """Resample labelled images.

    Args:
        truth: bool `[images]`, whether the image carries the positive label.
        called: bool `[variants, images]`, whether a variant called it positive.
    """
    cases, counts = np.unique(np.vstack([truth, called]), axis=1, return_counts=True)
    truth, called = cases[0], cases[1:].T.astype(int)  # [cases], [cases, variants]
    drawn = np.random.default_rng(SEED).multinomial(counts.sum(), counts / counts.sum(), TIMES)
    weights = np.vstack([counts, drawn])  # [1 + TIMES, cases]
    right = weights @ (called * truth[:, None])
    return Resampled(recall=_share(right, (weights @ truth)[:, None]),
                     precision=_share(right, weights @ called))


def difference(first: np.ndarray, second: np.ndarray) -> Optional[Points]:
    """Second minus first, each a column of `Resampled`; None where one of them has no value."""
    points = 100 * (second - first)
    if np.isnan(points[0]):
        return None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(points[1:], [tail, 100 - tail])
    return Points(float(points[0]), float(low), float(high))


def _share(count: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`count / total`, NaN where the total is 0."""
    return np.divide(count, total, out=np.full(count.shape, np.nan), where=total > 0)
