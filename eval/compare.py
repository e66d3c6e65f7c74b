"""From the stored rows of a run to its report: each variant, and each against the first."""
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from statistics import median
from typing import Any, Dict, Mapping, Optional, Sequence

from .disagreement import Disagreement, compare_answers
from .intervals import Estimate
from .metrics import LabelMetrics, answer_metrics
from .outcomes import Outcome
from .provenance import write_json
from .run_folder import LabelledImage, RunFolder
from .settings import check_target_recall
from .sweep import sweep
from .variant_report import VariantReport, of_split, variant_report


@dataclass(frozen=True)
class Ratio:
    """QPM of the second variant over the first's: median, least and greatest of the rounds."""
    value: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Comparison:
    """A variant against the first one, on the test images that both have a row for.

    Attributes:
        first, second: the variants' names.
        images: how many images both have a row for.
        all_images, positive_images: disagreements on all of them, and on those with the positive
            label.
        recall_points, precision_points: of the positive label, answers as given, second minus
            first in percentage points; None where one of them has no value.
        qpm_ratio: None where one of them has no QPM.
    """
    first: str
    second: str
    images: int
    all_images: Disagreement
    positive_images: Disagreement
    recall_points: Optional[float]
    precision_points: Optional[float]
    qpm_ratio: Optional[Ratio]


def score(folder: RunFolder, target_recall: Optional[float] = None) -> Dict[str, Any]:
    """Compute a run's report from its stored rows and write report.json. Needs no model.

    Args:
        target_recall: another wanted recall than the run's.

    Returns:
        The report, of JSON types.

    Raises:
        EvalError: the folder is not one of a run, or the target cannot be reached.
    """
    run = folder.read_run()
    images = folder.read_images()
    settings = dict(run['settings'])
    if target_recall is not None:
        check_target_recall(target_recall)
        settings['target_recall'] = target_recall
    variants = [
        variant_report(folder.variant(name), run, settings, images, name)
        for name in run['variants']
    ]
    with_rows = [variant for variant in variants if variant.images]
    splits = (settings['test_split'], settings['calibration_split'])
    found = sweep(folder, settings, images, variants)
    report = {
        'name': folder.path.resolve().name,
        'scored': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'provenance': run['provenance'],
        'resumed': run['resumed'],
        'settings': settings,
        'images': {split: _count(images, split, settings['positive']) for split in splits},
        'variants': [asdict(variant) for variant in variants],
        'comparisons': [asdict(_compare(folder, settings, images, with_rows[0], variant))
                        for variant in with_rows[1:]],
        'sweep': None if found is None else asdict(found),
    }
    write_json(folder.report_file, report)
    return folder.read_report()


def qpm_ratio(first: Sequence[Optional[float]],
              second: Sequence[Optional[float]]) -> Optional[Ratio]:
    """Ratio of the second's QPM to the first's, over the rounds in which both have one."""
    ratios = [b / a for a, b in zip(first, second) if a is not None and b is not None]
    return Ratio(median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None


def _compare(folder: RunFolder, settings: Mapping[str, Any], images: Sequence[LabelledImage],
             first: VariantReport, second: VariantReport) -> Comparison:
    """`second` against `first`."""
    a, b = (of_split(folder.variant(variant.name).read_outcomes(images, 1), images,
                     settings['test_split']) for variant in (first, second))
    common = {outcome.id for outcome in a} & {outcome.id for outcome in b}
    a, b = ([outcome for outcome in outcomes if outcome.id in common] for outcomes in (a, b))
    positive = settings['positive']
    positive_a, positive_b = ([outcome for outcome in outcomes if outcome.truth == positive]
                              for outcomes in (a, b))
    metrics_a, metrics_b = (_of_label(outcomes, settings['labels'], positive)
                            for outcomes in (a, b))
    return Comparison(first=first.name,
                      second=second.name,
                      images=len(common),
                      all_images=compare_answers(a, b),
                      positive_images=compare_answers(positive_a, positive_b),
                      recall_points=_points(metrics_a.recall, metrics_b.recall),
                      precision_points=_points(metrics_a.precision, metrics_b.precision),
                      qpm_ratio=qpm_ratio(first.round_qpm, second.round_qpm))


def _of_label(outcomes: Sequence[Outcome], labels: Sequence[str],
              label: str) -> LabelMetrics:
    """A label's figures from the answers as given."""
    return next(metrics for metrics in answer_metrics(outcomes, labels).labels
                if metrics.label == label)


def _points(first: Estimate, second: Estimate) -> Optional[float]:
    """Second minus first in percentage points."""
    if first.value is None or second.value is None:
        return None
    return 100 * (second.value - first.value)


def _count(images: Sequence[LabelledImage], split: str, positive: str) -> Dict[str, int]:
    """Images of a split, and how many carry the positive label."""
    labels = [image.label for image in images if image.split == split]
    return {'images': len(labels), 'positive': labels.count(positive)}
