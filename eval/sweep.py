"""Recall against image tokens: what a tile policy loses, and whether stock would lose less with as
many tokens.

Every run that holds upstream's code at several `max_dynamic_patch` is a sweep; the other variants
are judged against those.
"""
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from lmdeploy_ext.patching.selection import VARIABLE as PATCHES

from .bootstrap import Points, Resampled, difference, resample
from .intervals import Estimate
from .metrics import binary_metrics
from .outcomes import Outcome, positives, scores
from .run_folder import LabelledImage, RunFolder
from .variant_report import VariantReport, of_split

STOCK_CODE = ('none', 'cpu')  # values of LMDEPLOY_EXT_PATCHES that leave images to upstream


@dataclass(frozen=True)
class Quality:
    """Figures of the positive label on the test images.

    Attributes:
        recall, precision: as `metrics` has them.
        recall_points, precision_points: more than the first variant's.
        equal_tokens_points: recall, more than that of stock with as many image tokens, which is
            interpolated between the stock points beside it; None for stock itself.
    """
    recall: Estimate
    precision: Estimate
    recall_points: Optional[Points]
    precision_points: Optional[Points]
    equal_tokens_points: Optional[Points]


@dataclass(frozen=True)
class SweepPoint:
    """A variant.

    Attributes:
        stock: whether upstream's code handles its images.
        tokens: mean of an image, see `Sweep.prompt_tokens`.
        fewer: how many times fewer than the first variant's.
        between: the stock variants that it is judged by, with the weight of the second; twice the
            same where stock has no point beyond. None for stock itself.
        answers: from the most probable label. at_threshold: at `Sweep.threshold`.
        qpm, qpm_ratio: images per minute, and how many times the first variant's; None where too
            few images were answered.
    """
    name: str
    stock: bool
    tokens: float
    fewer: float
    between: Optional[Tuple[str, str, float]]
    answers: Quality
    at_threshold: Quality
    qpm: Optional[float]
    qpm_ratio: Optional[float]


@dataclass(frozen=True)
class Sweep:
    """The variants of a run, by image tokens.

    Attributes:
        images: the test images that every variant has a row for; figures are of these.
        threshold: the first variant's, applied to all.
        prompt_tokens: of the text around an image; tokens are without these. None where no variant
            makes one tile of every image, or the model is of another sort: tokens then include it.
        points: the variants with answers, in the run's order.
    """
    images: int
    threshold: float
    prompt_tokens: Optional[int]
    points: List[SweepPoint]


def sweep(folder: RunFolder, settings: Mapping[str, Any], images: Sequence[LabelledImage],
          variants: Sequence[VariantReport]) -> Optional[Sweep]:
    """The sweep of a run; None where the run is none."""
    shown = [variant for variant in variants if variant.images and variant.input_tokens]
    stock = [variant for variant in shown if is_stock_code(variant)]
    if len({variant.input_tokens.mean for variant in stock}) < 2:
        return None
    truth, score, answered = _arrays(folder, settings, images, shown)
    threshold = shown[0].threshold.value
    prompt = prompt_tokens(stock)
    tokens = np.array([variant.input_tokens.mean - (prompt or 0) for variant in shown])
    curve = sorted((tokens[index], index) for index, variant in enumerate(shown)
                   if is_stock_code(variant))
    between = [None if is_stock_code(variant) else _between(curve, count)
               for variant, count in zip(shown, tokens)]
    of_answers, of_threshold = _qualities(truth, answered, between), _qualities(
        truth, score >= threshold, between)
    points = [
        SweepPoint(name=variant.name,
                   stock=is_stock_code(variant),
                   tokens=float(tokens[index]),
                   fewer=float(tokens[0] / tokens[index]),
                   between=_named(between[index], shown),
                   answers=of_answers[index],
                   at_threshold=of_threshold[index],
                   qpm=variant.throughput.qpm,
                   qpm_ratio=_ratio(shown[0], variant)) for index, variant in enumerate(shown)
    ]
    return Sweep(len(truth), threshold, prompt, points)


def is_stock_code(variant: VariantReport) -> bool:
    """Whether no patch of a variant touches its images."""
    return variant.env.get(PATCHES) in STOCK_CODE


def prompt_tokens(stock: Sequence[VariantReport]) -> Optional[int]:
    """Tokens of the text around an image: the input of a variant that makes one tile of every
    image, without that tile. None where that is not known."""
    for variant in stock:
        counts = variant.input_tokens
        if (variant.settings.get('max_dynamic_patch') == 1 and variant.tile_tokens
                and counts.least == counts.most):
            return counts.least - variant.tile_tokens
    return None


def _arrays(folder: RunFolder, settings: Mapping[str, Any], images: Sequence[LabelledImage],
            shown: Sequence[VariantReport]) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the test images that all have a row for: truth bool `[images]`, score of the positive
    label float `[variants, images]`, NaN without an answer, and whether it was the answer."""
    positive = settings['positive']
    of_variant = [
        of_split(folder.variant(variant.name).read_outcomes(images, 1), images,
                 settings['test_split']) for variant in shown
    ]
    common = set.intersection(*({outcome.id for outcome in outcomes} for outcomes in of_variant))
    of_variant = [[outcome for outcome in outcomes if outcome.id in common]
                  for outcomes in of_variant]
    score = np.stack([scores(outcomes, positive) for outcomes in of_variant])
    return positives(of_variant[0], positive), score, np.stack(
        [_answered(outcomes, positive) for outcomes in of_variant])


def _answered(outcomes: Sequence[Outcome], positive: str) -> np.ndarray:
    return np.array([outcome.answer == positive for outcome in outcomes])


def _between(curve: Sequence[Tuple[float, int]], tokens: float) -> Tuple[int, int, float]:
    """The stock points beside a number of tokens, and the weight of the second."""
    places = [place for place, _ in curve]
    right = int(np.searchsorted(places, tokens))
    if right in (0, len(curve)):
        end = curve[min(right, len(curve) - 1)][1]
        return end, end, 0.0
    (low, first), (high, second) = curve[right - 1:right + 1]
    return first, second, float((tokens - low) / (high - low))


def _qualities(truth: np.ndarray, called: np.ndarray,
               between: Sequence[Optional[Tuple[int, int, float]]]) -> List[Quality]:
    """The figures of every variant from bool `[variants, images]`."""
    resampled = resample(truth, called)
    return [_quality(truth, called, resampled, index, beside)
            for index, beside in enumerate(between)]


def _quality(truth: np.ndarray, called: np.ndarray, resampled: Resampled, index: int,
             beside: Optional[Tuple[int, int, float]]) -> Quality:
    metrics = binary_metrics(truth, called[index].astype(float), 0.5)
    recall, precision = resampled.recall, resampled.precision
    equal = None
    if beside is not None:
        first, second, weight = beside
        stock = (1 - weight) * recall[:, first] + weight * recall[:, second]
        equal = difference(stock, recall[:, index])
    return Quality(metrics.recall, metrics.precision,
                   difference(recall[:, 0], recall[:, index]),
                   difference(precision[:, 0], precision[:, index]), equal)


def _named(beside: Optional[Tuple[int, int, float]],
           shown: Sequence[VariantReport]) -> Optional[Tuple[str, str, float]]:
    if beside is None:
        return None
    first, second, weight = beside
    return shown[first].name, shown[second].name, weight


def _ratio(first: VariantReport, second: VariantReport) -> Optional[float]:
    if first.throughput.qpm is None or second.throughput.qpm is None:
        return None
    return second.throughput.qpm / first.throughput.qpm
