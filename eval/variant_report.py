"""Figures of one variant of a run, from its stored rows."""
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .image_tokens import InputTokens, input_tokens
from .metrics import AnswerMetrics, BinaryMetrics, answer_metrics, binary_metrics
from .outcomes import Outcome, is_off_label, positives, scores
from .run_folder import LabelledImage, VariantFolder
from .threshold import Curve, curve, threshold_for_recall
from .timing import Latency, Throughput, latency, latency_curve, throughput

DEFAULT_THRESHOLD = 0.5
LISTED_ERRORS = 10


@dataclass(frozen=True)
class Threshold:
    """The threshold that the test figures of the positive label are given for.

    Attributes:
        value: images whose positive probability reaches it are called positive.
        target: the wanted recall that it was chosen for; None where it is the default.
        note: how it came about, one sentence.
        calibration: figures of the calibration images at it; None without such images.
    """
    value: float
    target: Optional[float]
    note: str
    calibration: Optional[BinaryMetrics]


@dataclass(frozen=True)
class VariantReport:
    """Figures of one variant: quality on test images of the first round, speed over all images.

    Attributes:
        name, env, settings: of the variant; the settings are those of its own.
        error: why its process ended early, or None.
        pending: images of the first round, both splits, that have no row yet.
        images: test images with a row.
        input_tokens: of test images with an answer; None where there are none.
        tile_tokens: tokens of a tile; None where its process did not say, or has no tiles.
        answers: figures of the answers as given.
        threshold, at_threshold: figures of the positive label at the chosen threshold.
        curve: precision and recall at every threshold.
        unanswered: images without an answer, both splits; `errors` holds `{'id', 'error'}` of the
            first of them.
        off_label: answered images, both splits, whose raw text starts with none of the labels.
        throughput, latency: over all rounds.
        latency_curve: seconds at 0, 1, … 100 % of the answers; empty where there are none.
        round_qpm: QPM of each round.
        round_changes: answers of later rounds that differ from the first round's.
        patches: rows of `lmdeploy_ext.patching.status()` in its process.
        versions: of its process.
        engine: backend, device, chat template and the like, as its process ran them.
    """
    name: str
    env: Dict[str, str]
    settings: Dict[str, int]
    error: Optional[str]
    pending: int
    images: int
    input_tokens: Optional[InputTokens]
    tile_tokens: Optional[int]
    answers: AnswerMetrics
    threshold: Threshold
    at_threshold: BinaryMetrics
    curve: Curve
    unanswered: int
    errors: List[Dict[str, Optional[str]]]
    off_label: int
    throughput: Throughput
    latency: Latency
    latency_curve: Tuple[float, ...]
    round_qpm: Tuple[Optional[float], ...]
    round_changes: int
    patches: List[Dict[str, Any]]
    versions: Dict[str, Any]
    engine: Dict[str, Any]


def choose_threshold(calibration: Sequence[Outcome], positive: str, target: float) -> Threshold:
    """Choose the threshold for a wanted recall on calibration images, and on nothing else."""
    if not calibration:
        note = f'no calibration images answered: threshold {DEFAULT_THRESHOLD}'
        return Threshold(DEFAULT_THRESHOLD, None, note, None)
    truth, score = positives(calibration, positive), scores(calibration, positive)
    value = threshold_for_recall(truth, score, target)
    if value is None:
        note = (f'no threshold reaches a recall of {target:g} on the calibration split '
                f'({int(truth.sum())} positive images): threshold {DEFAULT_THRESHOLD}')
        return Threshold(DEFAULT_THRESHOLD, None, note,
                         binary_metrics(truth, score, DEFAULT_THRESHOLD))
    note = f'the highest with a recall of at least {target:g} on the calibration split'
    return Threshold(value, target, note, binary_metrics(truth, score, value))


def variant_report(folder: VariantFolder, run: Mapping[str, Any], settings: Mapping[str, Any],
                   images: Sequence[LabelledImage], name: str) -> VariantReport:
    """All figures of the variant whose rows are in `folder`.

    Args:
        run: the content of run.json.
        settings: those of the run, as they are to be scored.
    """
    own = run.get('variant_settings', {}).get(name, {})
    settings = {**settings, **own}
    outcomes = folder.read_outcomes(images, 1)
    failed = [outcome for outcome in outcomes if outcome.answer is None]
    listed = [{'id': outcome.id, 'error': outcome.error} for outcome in failed[:LISTED_ERRORS]]
    process, engine = folder.read_process(), folder.read_engine()
    return VariantReport(name=name,
                         env=run['variants'][name],
                         settings=own,
                         error=folder.read_error(),
                         pending=len(images) - len(outcomes),
                         tile_tokens=process.get('tile_tokens'),
                         input_tokens=_input_tokens(folder, settings, images),
                         unanswered=len(failed),
                         errors=listed,
                         off_label=sum(map(is_off_label, outcomes)),
                         round_changes=_round_changes(folder, settings, images),
                         patches=process.get('patches', []),
                         versions=process.get('versions', {}),
                         engine=engine,
                         **_quality(outcomes, settings, images),
                         **_speed(folder, settings, engine))


def _input_tokens(folder: VariantFolder, settings: Mapping[str, Any],
                  images: Sequence[LabelledImage]) -> Optional[InputTokens]:
    """Of the first round's test images."""
    ids = {image.id for image in images if image.split == settings['test_split']}
    return input_tokens(row for row in folder.read_rows(1) if row.id in ids)


def _quality(outcomes: Sequence[Outcome], settings: Mapping[str, Any],
             images: Sequence[LabelledImage]) -> Dict[str, Any]:
    """The fields of VariantReport that come from answers."""
    positive = settings['positive']
    test = of_split(outcomes, images, settings['test_split'])
    calibration = of_split(outcomes, images, settings['calibration_split'])
    threshold = choose_threshold(calibration, positive, settings['target_recall'])
    truth, score = positives(test, positive), scores(test, positive)
    return {
        'images': len(test),
        'answers': answer_metrics(test, settings['labels']),
        'threshold': threshold,
        'at_threshold': binary_metrics(truth, score, threshold.value),
        'curve': curve(truth, score),
    }


def _speed(folder: VariantFolder, settings: Mapping[str, Any],
           engine: Mapping[str, Any]) -> Dict[str, Any]:
    """The fields of VariantReport that come from completion times."""
    warmup = settings['warmup']
    # An engine may hold fewer requests in flight than it was asked to.
    concurrency = engine.get('concurrency', settings['concurrency'])
    rounds = [folder.read_completions(number) for number in _rounds(settings)]
    completions = [completion for answered in rounds for completion in answered]
    return {
        'throughput': throughput(completions, concurrency, warmup),
        'latency': latency(completions, concurrency, warmup),
        'latency_curve': latency_curve(completions, warmup),
        'round_qpm': tuple(throughput(answered, concurrency, warmup).qpm for answered in rounds),
    }


def _round_changes(folder: VariantFolder, settings: Mapping[str, Any],
                   images: Sequence[LabelledImage]) -> int:
    """Answers of later rounds that differ from those of the first."""
    first, *later = (folder.read_outcomes(images, number) for number in _rounds(settings))
    answer_of = {outcome.id: outcome.answer for outcome in first}
    return sum(outcome.id in answer_of and outcome.answer != answer_of[outcome.id]
               for outcomes in later for outcome in outcomes)


def of_split(outcomes: Sequence[Outcome], images: Sequence[LabelledImage],
             split: str) -> List[Outcome]:
    """The outcomes of a split's images."""
    ids = {image.id for image in images if image.split == split}
    return [outcome for outcome in outcomes if outcome.id in ids]


def _rounds(settings: Mapping[str, Any]) -> range:
    """The rounds' numbers."""
    return range(1, settings['rounds'] + 1)
