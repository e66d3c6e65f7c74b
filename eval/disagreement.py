"""Do two variants differ in how often they are right? McNemar's exact test on the images where
they disagree."""
from dataclasses import dataclass
from typing import Sequence, Tuple

from scipy.stats import binomtest

from .outcomes import Outcome


@dataclass(frozen=True)
class Disagreement:
    """Two variants on the same images; an image without an answer is a wrong one.

    Attributes:
        both_right, only_first_right, only_second_right, both_wrong: counts of images.
        changed: images whose answers differ, an answer against none included.
        changed_ids: the first of them, in the order of the images.
        p_value: of McNemar's exact two-sided test (1947, Psychometrika 12, 153-157): how probable
            a split of `only_first_right` against `only_second_right` at least as uneven is if both
            variants are right equally often. 1 where they disagree nowhere.
    """
    both_right: int
    only_first_right: int
    only_second_right: int
    both_wrong: int
    changed: int
    changed_ids: Tuple[str, ...]
    p_value: float


def compare_answers(first: Sequence[Outcome],
                    second: Sequence[Outcome],
                    list_at_most: int = 20) -> Disagreement:
    """Compare two variants' answers.

    Raises:
        ValueError: the two do not hold the same images in the same order.
    """
    if [outcome.id for outcome in first] != [outcome.id for outcome in second]:
        raise ValueError('the two variants answered other images, or in another order; '
                         'compare variants of one run only')
    right = [(a.answer == a.truth, b.answer == b.truth) for a, b in zip(first, second)]
    changed = [a.id for a, b in zip(first, second) if a.answer != b.answer]
    only_first, only_second = right.count((True, False)), right.count((False, True))
    return Disagreement(both_right=right.count((True, True)),
                        only_first_right=only_first,
                        only_second_right=only_second,
                        both_wrong=right.count((False, False)),
                        changed=len(changed),
                        changed_ids=tuple(changed[:list_at_most]),
                        p_value=mcnemar_exact(only_first, only_second))


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """The two-sided p-value: a binomial test of `only_first` among the discordant images at one
    half."""
    discordant = only_first + only_second
    return float(binomtest(only_first, discordant, 0.5).pvalue) if discordant else 1.0
