"""From what was measured to the rows of the result, and the figures that are to be reached."""
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from .prefix_rounds import Outcomes
from .prefix_scope import CACHES, INSTRUCTION, OFF, ON, QUESTIONS, SCENARIOS, UNIQUE

Row = Dict[str, Any]
FEATURES = 'features'


def result_rows(outcomes: Outcomes, device: str) -> List[Row]:
    """One row for each scenario and setting of the cache that was tried, and one about features
    where the `device` of the engines is `cuda`; `reason` says why something is not, or not fully,
    measured."""
    cells = [(scenario, cache) for scenario in SCENARIOS for cache in CACHES
             if (scenario, cache) in {**outcomes.measured, **outcomes.failed}]
    rows = [_row(outcomes, *cell) for cell in cells]
    return rows if device == 'cpu' else rows + _feature_rows(outcomes)


def targets(rows: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """`{'name', 'want', 'got', 'met'}` of each figure that was measured."""
    found = [
        _target('time to the first token, questions 2 to 8 to question 1, at most', 0.3,
                _of(rows, QUESTIONS, 'ratio'), at_most=True),
        _target('one instruction before all images, images a minute, on to off', 1.4,
                _of(rows, INSTRUCTION, 'ratio')),
        _target('nothing in common, images a minute, on to off', 0.98,
                _of(rows, UNIQUE, 'ratio')),
        _target('share of requests with virtual tokens', 1, _of(rows, FEATURES, 'virtual_share')),
        _target('share of images whose features stay on the GPU', 1,
                _of(rows, FEATURES, 'on_gpu_share'))
    ]
    return [target for target in found if target is not None]


def _row(outcomes: Outcomes, scenario: str, cache: str) -> Row:
    about = {'part': scenario, 'cache': cache, 'reason': outcomes.failed.get((scenario, cache))}
    rounds = outcomes.measured.get((scenario, cache), {})
    if not rounds:
        return about
    figures = (_question_figures(rounds) if scenario == QUESTIONS else
               _throughput_figures(rounds, outcomes.measured.get((scenario, OFF), {})))
    return {**about, 'rounds': len(rounds),
            'requests': sum(each['requests'] for each in rounds.values()),
            'input_tokens': _tokens(rounds), 'cached_share': _cached_share(rounds), **figures}


def _question_figures(rounds: Mapping[int, Mapping[str, Any]]) -> Row:
    """Medians over the images of all rounds."""
    seconds = np.array([image for each in rounds.values() for image in each['first_token_s']])
    later = np.median(seconds[:, 1:], axis=1)
    return {
        'images': len(seconds),
        'first_ms': round(1000 * float(np.median(seconds[:, 0])), 2),
        'later_ms': round(1000 * float(np.median(later)), 2),
        'ratio': round(float(np.median(later / seconds[:, 0])), 4)
    }


def _throughput_figures(rounds: Mapping[int, Mapping[str, Any]],
                        off: Mapping[int, Mapping[str, Any]]) -> Row:
    """Medians over the rounds; the ratio is one to the same rounds with the cache off."""
    qpm = {number: 60 * each['requests'] / each['seconds'] for number, each in rounds.items()}
    ratios = [qpm[number] * off[number]['seconds'] / (60 * off[number]['requests'])
              for number in rounds if number in off]
    return {
        'qpm': round(float(np.median(list(qpm.values()))), 1),
        'qpm_rounds': [round(value, 1) for value in qpm.values()],
        'ratio': round(float(np.median(ratios)), 4) if ratios else None
    }


def _tokens(rounds: Mapping[int, Mapping[str, Any]]) -> float:
    """Of a request, the mean."""
    return round(float(np.mean([each['input_tokens'] for each in rounds.values()])), 1)


def _cached_share(rounds: Mapping[int, Mapping[str, Any]]) -> Optional[float]:
    """Of the prompt tokens; None where the engine does not count them."""
    figures = [each['figures'] for each in rounds.values()]
    if any(each['cached_tokens'] is None for each in figures):
        return None
    return _share(figures, 'cached_tokens', 'prompt_tokens')


def _feature_rows(outcomes: Outcomes) -> List[Row]:
    """What became of features while the cache was on."""
    figures = [each['figures'] for (_, cache), rounds in outcomes.measured.items() if cache == ON
               for each in rounds.values()]
    if not figures:
        return []
    virtual = figures[0]['virtual'] is not None
    return [{
        'part': FEATURES,
        'cache': ON,
        'requests': sum(each['images'] for each in figures),
        'virtual_share': _share(figures, 'virtual', 'images') if virtual else None,
        'on_gpu_share': _share(figures, 'images_on_gpu', 'images')
    }]


def _share(figures: Sequence[Mapping[str, int]], part: str, whole: str) -> float:
    return round(sum(each[part] for each in figures) /
                 max(sum(each[whole] for each in figures), 1), 4)


def _of(rows: Sequence[Mapping[str, Any]], part: str, name: str) -> Optional[float]:
    """A figure of the row with the cache on."""
    return next((row.get(name) for row in rows if row['part'] == part and row['cache'] == ON),
                None)


def _target(name: str, want: float, got: Optional[float],
            at_most: bool = False) -> Optional[Dict[str, Any]]:
    if got is None:
        return None
    return {'name': name, 'want': want, 'got': got,
            'met': got <= want if at_most else got >= want}
