"""Figures of tile settings on labelled pictures, and their table."""
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from ..intervals import Estimate
from ..metrics import binary_metrics

LEAST = 1e-6  # probabilities nearer to 0 and 1 are fp32 rounding: a log loss of 13.8 at most
THRESHOLD = 0.5


@dataclass(frozen=True)
class Mean:
    """A mean over pictures and its standard error, which is None for a single picture."""
    value: float
    error: Optional[float]


@dataclass(frozen=True)
class SettingFigures:
    """Figures of one setting.

    Attributes:
        tiles: mean tiles of a picture, thumbnails included.
        fewer: how many times fewer than the first setting's.
        recall, precision, accuracy: at a threshold of 0.5.
        log_loss: mean of -ln(probability of the right answer); moves before recall does.
        log_loss_more: how much more than the first setting's, picture by picture.
    """
    name: str
    tiles: float
    fewer: float
    recall: Estimate
    precision: Estimate
    accuracy: Estimate
    log_loss: Mean
    log_loss_more: Mean


def setting_figures(names: Sequence[str], truth: np.ndarray, tiles: np.ndarray,
                    probabilities: np.ndarray) -> list[SettingFigures]:
    """Figures of every setting; the first is what the others are compared with.

    Args:
        truth: bool `[pictures]`, whether the right answer is the positive one.
        tiles: int `[settings, pictures]`, thumbnails included.
        probabilities: float `[settings, pictures]` of the positive answer.
    """
    of_truth = np.where(truth, probabilities, 1 - probabilities)
    losses = -np.log(np.clip(of_truth, LEAST, 1 - LEAST))  # [settings, pictures]
    rows = []
    for name, count, probability, loss in zip(names, tiles, probabilities, losses):
        metrics = binary_metrics(truth, probability, THRESHOLD)
        rows.append(SettingFigures(name=name,
                                   tiles=float(count.mean()),
                                   fewer=float(tiles[0].mean() / count.mean()),
                                   recall=metrics.recall,
                                   precision=metrics.precision,
                                   accuracy=metrics.accuracy,
                                   log_loss=_mean(loss),
                                   log_loss_more=_mean(loss - losses[0])))
    return rows


def _mean(values: np.ndarray) -> Mean:
    """Mean of float `[pictures]`."""
    count = len(values)
    error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else None
    return Mean(float(values.mean()), error)


def markdown(record: Mapping[str, Any]) -> str:
    """The table of a record of `policies.py`, with what gave it."""
    rows = record['rows']
    first = rows[0]['name']
    lines = [
        f'| setting | tiles | times fewer | recall % | precision % | accuracy % | log loss '
        f'| more than {first} |', '|---|---|---|---|---|---|---|---|'
    ]
    for row in rows:
        shares = ' | '.join(_percent(row[name]) for name in ('recall', 'precision', 'accuracy'))
        lines.append(f'| {row["name"]} | {row["tiles"]:.2f} | {row["fewer"]:.2f} | {shares} '
                     f'| {row["log_loss"]["value"]:.4f} | {_more(row["log_loss_more"])} |')
    commit = record['commit'] or {'id': 'unknown', 'dirty': False}
    changed = ', with uncommitted changes' if commit['dirty'] else ''
    machine = record['machine']
    place = ', '.join(machine['gpus']) if record['device'] != 'cpu' else machine['cpu']
    lines += [
        '', f'{record["count"]} pictures of the {record["split"]} split, set version '
        f'{record["set_version"]}, seed {record["seed"]}; weights '
        f'`{record["weights_sha256"][:12]}`, fp32 reference, threshold {THRESHOLD}; commit '
        f'`{commit["id"][:12]}`{changed}; {place}. Tiles are the mean of a picture, its '
        'thumbnail included; intervals are 95 %; the last column is the mean difference of the '
        'log loss, picture by picture, and its standard error.', ''
    ]
    return '\n'.join(lines)


def _percent(estimate: Mapping[str, Any]) -> str:
    if estimate['value'] is None:
        return 'none'
    value, low, high = (100 * estimate[name] for name in ('value', 'low', 'high'))
    return f'{value:.1f} ({low:.1f} to {high:.1f})'


def _more(mean: Mapping[str, Any]) -> str:
    if mean['error'] is None:
        return f'{mean["value"]:+.4f}'
    return f'{mean["value"]:+.4f} ± {mean["error"]:.4f}'
