"""A sweep's figures beside what they were to reach, in the form of a benchmark's result."""
from pathlib import Path
from typing import Any, Dict, List, Mapping

from .errors import EvalError
from .provenance import RESULT_FIELDS, write_result

DEFAULT_POLICY = 'native'  # the variant that the promises are about
MOST_LOST = 1.0  # points of recall, and of precision, that it may lose against the first variant
LEAST_FEWER = 2.5  # times fewer image tokens


def write_record(path: Path, report: Mapping[str, Any]) -> None:
    """Write the points of a sweep's report to a file, with its targets.

    Raises:
        EvalError: the report is of no sweep, or the file cannot be written.
    """
    if not report.get('sweep'):
        raise EvalError(f'the run {report["name"]} is no sweep; expected one with upstream\'s '
                        'code at several max_dynamic_patch, as `sweep` makes it')
    provenance = {name: value for name, value in report['provenance'].items()
                  if name in RESULT_FIELDS}
    try:
        write_result(path, rows=report['sweep']['points'], targets=targets(report['sweep']),
                     **provenance)
    except OSError as error:
        raise EvalError(
            f'{path} cannot be written ({error.strerror}); name another file') from error


def targets(sweep: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """`{'name', 'want', 'got', 'met'}` of each figure, from answers as given: what the default
    policy may lose, and for each policy the recall that stock has with as many tokens. A target
    that has no figure, for want of positive images, is left out."""
    first, *others = sweep['points']
    found = []
    for point in others:
        if point['name'] == DEFAULT_POLICY:
            found += [_target(f'{DEFAULT_POLICY}: {name} against {first["name"]}, points',
                              point['answers'][f'{name}_points'], -MOST_LOST)
                      for name in ('recall', 'precision')]
            found.append(_target(f'{DEFAULT_POLICY}: times fewer image tokens than '
                                 f'{first["name"]}', {'value': point['fewer']}, LEAST_FEWER))
    found += [_target(f'{point["name"]}: recall against stock at equal tokens, points',
                      point['answers']['equal_tokens_points'], 0)
              for point in others if point['between']]
    return [target for target in found if target]


def _target(name: str, figure: Any, want: float) -> Dict[str, Any]:
    if figure is None:
        return {}
    met = figure['value'] >= want - 1e-9  # an interpolated share is not exact
    return {'name': name, 'want': f'>= {want:g}', 'got': round(figure['value'], 3), 'met': met}
