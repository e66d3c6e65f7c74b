"""Estimates with a 95 % interval."""
from dataclasses import dataclass
from typing import Optional

from scipy.stats import binomtest

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A share of counted cases and its 95 % interval; all three are None where nothing was
    counted.

    Attributes:
        value: the estimate, 0 to 1.
        low, high: the interval's ends.
        count: cases with the property.
        total: cases counted.
    """
    value: Optional[float]
    low: Optional[float]
    high: Optional[float]
    count: int
    total: int


def proportion(count: int, total: int) -> Estimate:
    """`count` of `total` cases with the score interval of Wilson (1927, J. Amer. Stat. Assoc. 22,
    209-212).

    Raises:
        ValueError: unless 0 <= count <= total.
    """
    if not 0 <= count <= total:
        raise ValueError(f'{count} of {total} is not a proportion; '
                         f'the count must lie between 0 and the total')
    if total == 0:
        return Estimate(None, None, None, 0, 0)
    interval = binomtest(count, total).proportion_ci(CONFIDENCE, method='wilson')
    value = count / total
    # At 0 and 1 the interval ends at the estimate, but for rounding.
    return Estimate(value, min(interval.low, value), max(interval.high, value), count, total)


def f1(true_positives: int, false_positives: int, false_negatives: int) -> Estimate:
    """F1 with the Wilson indirect interval of Lam, Gopal and Qian (2023, arXiv:2309.14621).

    F* = TP / (TP + FP + FN) is a proportion (Hand, Christen and Kirielle 2021, Machine Learning
    110, 451-456) and F1 = 2 F* / (1 + F*) grows with it, so the ends of F*'s Wilson interval map
    to those of F1. `count` and `total` of the estimate are F*'s.
    """
    star = proportion(true_positives, true_positives + false_positives + false_negatives)
    if star.value is None:
        return star
    value, low, high = (2 * end / (1 + end) for end in (star.value, star.low, star.high))
    return Estimate(value, low, high, star.count, star.total)
