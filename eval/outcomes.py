"""What a variant answered for each labelled image: the only input of every metric."""
from dataclasses import dataclass
from typing import Mapping, Optional, Sequence

import numpy as np

from lmdeploy_ext.classify.tally import begins_with_label


@dataclass(frozen=True)
class Outcome:
    """One labelled image and a variant's answer.

    Attributes:
        id: the image's id in the manifest.
        truth: its label in the manifest.
        answer: the most probable label, or None where the image ended in an error: an error is
            never an answer.
        probabilities: probability of each label, or None where there is no answer.
        text: the raw answer, '' where there is none.
        error: one line, or None.
    """
    id: str
    truth: str
    answer: Optional[str]
    probabilities: Optional[Mapping[str, float]]
    text: str = ''
    error: Optional[str] = None


def positives(outcomes: Sequence[Outcome], positive: str) -> np.ndarray:
    """Whether each image carries the positive label: bool [images]."""
    return np.array([outcome.truth == positive for outcome in outcomes], bool)


def scores(outcomes: Sequence[Outcome], positive: str) -> np.ndarray:
    """Probability of the positive label: float64 [images], NaN where there is no answer."""
    return np.array([
        np.nan if outcome.probabilities is None else outcome.probabilities[positive]
        for outcome in outcomes
    ], float)


def is_off_label(outcome: Outcome) -> bool:
    """Whether an answered image's raw text begins with none of the labels.

    Its label is still the most probable one; many such answers mean that the prompt does not fit
    the model.
    """
    return (outcome.probabilities is not None
            and not begins_with_label(outcome.text, outcome.probabilities))
