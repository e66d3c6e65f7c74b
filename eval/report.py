"""report.md and the pictures, and the table for the terminal: report.json made readable."""
import shlex
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import plots, sweep_plot
from .run_folder import RunFolder

TEMPLATES = Path(__file__).parent / 'templates'
NONE = '–'


def write_report(folder: RunFolder) -> Path:
    """Write report.md and its pictures from report.json; returns the path of report.md.

    Raises:
        EvalError: the run has no report.json.
    """
    report = folder.read_report()
    plots.draw(report, folder.path)
    if report.get('sweep'):
        sweep_plot.draw(report, folder.path)
    path = folder.path / 'report.md'
    path.write_text(render(report), encoding='utf-8')
    return path


def render(report: Mapping[str, Any]) -> str:
    """The report in Markdown."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES),
                              undefined=StrictUndefined,
                              trim_blocks=True,
                              lstrip_blocks=True,
                              keep_trailing_newline=True,
                              autoescape=False)
    environment.filters.update(interval=interval,
                               percent=percent,
                               number=number,
                               cell=cell,
                               qpm=qpm,
                               ratio=ratio,
                               points=points,
                               times=times,
                               signed=signed,
                               commit=commit,
                               command=shlex.join)
    template = environment.get_template('report.md.j2')
    return template.render(report,
                           sweep=report.get('sweep'),  # reports of before lack it
                           positive_of=lambda variant: positive_metrics(report, variant),
                           sentences=sentences(report),
                           patch_states=patch_states(report))


def summary(report: Mapping[str, Any]) -> str:
    """A table for the terminal: one line a variant, and what the comparison says."""
    header = ['variant', 'recall %', 'precision %', 'F1 %', 'images/min', 'p50 s', 'errors']
    rows = [header]
    for variant in report['variants']:
        metrics = positive_metrics(report, variant)
        rows.append([variant['name'], interval(metrics['recall']), interval(metrics['precision']),
                     interval(metrics['f1']), qpm(variant['throughput']),
                     number(variant['latency']['p50']), str(variant['unanswered'])])
    if report.get('sweep'):
        tokens = {point['name']: point['tokens'] for point in report['sweep']['points']}
        header.append('tokens')
        for row in rows[1:]:
            row.append(number(tokens.get(row[0]), 0))
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        '  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows
    ]
    lines.insert(1, '  '.join('-' * width for width in widths))
    told = sentences(report)
    return '\n'.join(lines + ([''] + told if told else []))


def sentences(report: Mapping[str, Any]) -> List[str]:
    """What came out, a sentence a variant: failures first, then comparisons; of a sweep, those
    with stock at equal tokens."""
    lines = [
        f'{variant["name"]} ended early: {variant["error"]}' for variant in report['variants']
        if variant['error']
    ]
    if report.get('sweep'):
        return lines + [_verdict(point) for point in report['sweep']['points'] if point['between']]
    for pair in report['comparisons']:
        difference = pair['all_images']
        lines.append(
            f'{pair["second"]} against {pair["first"]}: {difference["changed"]} of '
            f'{pair["images"]} answers changed (McNemar p = {difference["p_value"]:.2g}), '
            f'recall {signed(pair["recall_points"])} points, precision '
            f'{signed(pair["precision_points"])} points, '
            f'{ratio(pair["qpm_ratio"])} the images per minute')
    return lines


def _verdict(point: Mapping[str, Any]) -> str:
    """Is the recall of a variant at least that of stock with as many image tokens? Judged by what
    is printed: less than 0.05 points is none."""
    first, second, _ = point['between']
    beside = f'between {first} and {second}' if first != second else f'nearest is {first}'
    parts = []
    for basis, words in (('answers', 'as answered'), ('at_threshold', 'at one threshold')):
        more = point[basis]['equal_tokens_points']
        if more is not None:
            parts.append(f'{points(more)} points of recall {words}: '
                         f'{"reached" if round(more["value"], 1) >= 0 else "missed"}')
    return (f'{point["name"]} against stock at equal tokens ({point["tokens"]:.0f}, {beside}): '
            f'{"; ".join(parts) or "no positive image"}')


def positive_metrics(report: Mapping[str, Any], variant: Mapping[str, Any]) -> Mapping[str, Any]:
    """A variant's figures of the positive label, from its answers as given."""
    return next(metrics for metrics in variant['answers']['labels']
                if metrics['label'] == report['settings']['positive'])


def patch_states(report: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Every patch that some variant's process knew, with its state in each variant."""
    patches: Dict[str, Dict[str, Any]] = {}
    for variant in report['variants']:
        for patch in variant['patches']:
            entry = patches.setdefault(patch['name'], {**patch, 'states': {}})
            entry['states'][variant['name']] = patch['state']
    return sorted(patches.values(), key=lambda patch: (str(patch['group']), patch['name']))


def interval(estimate: Mapping[str, Any]) -> str:
    """'96.7 (88.6–99.1)', in percent."""
    if estimate['value'] is None:
        return NONE
    value, low, high = (f'{100 * estimate[end]:.1f}' for end in ('value', 'low', 'high'))
    return f'{value} ({low}–{high})'


def percent(value: Optional[float]) -> str:
    """'96.7', in percent."""
    return NONE if value is None else f'{100 * value:.1f}'


def number(value: Optional[float], digits: int = 2) -> str:
    """A number with so many digits after the point."""
    return NONE if value is None else f'{value:.{digits}f}'


def signed(value: Optional[float]) -> str:
    """'+0.8'; never '-0.0'."""
    return NONE if value is None else f'{round(value, 1) + 0.0:+.1f}'


def qpm(throughput: Mapping[str, Any]) -> str:
    """'142 (131–150)': median, slowest and fastest window."""
    if throughput['qpm'] is None:
        return NONE
    return f'{throughput["qpm"]:.0f} ({throughput["low"]:.0f}–{throughput["high"]:.0f})'


def ratio(value: Optional[Mapping[str, Any]]) -> str:
    """'2.01 times', with the range where there was more than one round."""
    if value is None:
        return NONE
    text = f'{value["value"]:.2f} times'
    if value['rounds'] > 1:
        text += f' ({value["low"]:.2f}–{value["high"]:.2f} over {value["rounds"]} rounds)'
    return text


def points(value: Optional[Mapping[str, Any]]) -> str:
    """'+0.8 (-1.2 to +2.6)', a difference in percentage points."""
    if value is None:
        return NONE
    return f'{signed(value["value"])} ({signed(value["low"])} to {signed(value["high"])})'


def times(value: Optional[float]) -> str:
    """'2.01 times'."""
    return NONE if value is None else f'{value:.2f} times'


def commit(value: Optional[Mapping[str, Any]]) -> str:
    """A commit's id, and whether the tree had changes that it does not hold."""
    if value is None:
        return 'not a git checkout'
    return value['id'] + (', with uncommitted changes' if value['dirty'] else '')


def cell(text: Any) -> str:
    """Text that cannot end a table cell."""
    return NONE if text in (None, '') else ' '.join(str(text).split()).replace('|', '\\|')
