"""The pictures of a report: PNG files drawn from report.json.

Colours are those of Okabe and Ito (2008, Color Universal Design), and every variant has a marker
of its own, so that the pictures can be read without seeing colours. Labels of the data set are not
drawn: matplotlib's own font has no Chinese.
"""
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ('#4D4D4D', '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00')
MARKERS = ('o', 's', 'D', '^', 'v', 'P')
METRICS = (('recall', 'Recall'), ('precision', 'Precision'), ('f1', 'F1'))
DPI = 150
NAME_WIDTH = 24  # characters of a variant's name that every picture has room for
GREY = '#666666'


def draw(report: Mapping[str, Any], folder: Path) -> List[Path]:
    """Draw all pictures into `folder`; variants without answers are left out."""
    drawn = []
    for name, figure in (('overview', overview(report)), ('precision_recall',
                                                          precision_recall(report)),
                         ('latency', latency(report))):
        path = folder / f'{name}.png'
        figure.savefig(path, dpi=DPI)
        drawn.append(path)
    return drawn


def overview(report: Mapping[str, Any]) -> Figure:
    """Recall, precision and F1 with intervals on the left, images per minute on the right."""
    variants = _styled(report)
    height = 2.6 + 0.33 * len(METRICS) * max(len(variants), 2)
    figure = Figure(figsize=(12, height), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    quality, speed = figure.subplots(1, 2, width_ratios=(1.3, 1))
    _draw_quality(quality, report, variants)
    _draw_speed(speed, report, variants)
    figure.suptitle(f'{_names(report)} on {images_of(report)}', fontsize=15, fontweight='bold')
    for variant, style in variants:
        quality.plot([], [], color=style['color'], marker=style['marker'], linestyle='none',
                     markersize=9, label=short(variant['name']))
    _legend_below(figure, columns=min(max(len(variants), 1), 4))
    return figure


def precision_recall(report: Mapping[str, Any]) -> Figure:
    """Precision against recall over all thresholds, and the chosen threshold."""
    figure = Figure(figsize=(7, 6), layout='constrained')
    axes = figure.subplots()
    variants = [(variant, style) for variant, style in _styled(report)
                if variant['curve']['thresholds']]
    for variant, style in variants:
        _draw_curve(axes, variant, style)
    # A good model's curve turns in the upper right corner; show that corner large.
    good = all(variant['curve']['average_precision'] > 0.95 for variant, _ in variants)
    axes.set(xlabel='Recall of the positive label', ylabel='Precision',
             xlim=(0.5 if good else 0, 1.003), ylim=(0.5 if good else 0, 1.005))
    axes.set_title(f'Precision and recall on {images_of(report)}', fontweight='bold')
    finish(axes)
    _legend_below(figure, columns=1)
    return figure


def latency(report: Mapping[str, Any]) -> Figure:
    """Share of images answered within a time, with p50, p95 and p99."""
    figure = Figure(figsize=(7, 4.6), layout='constrained')
    axes = figure.subplots()
    for variant, style in _styled(report):
        seconds = variant['latency_curve']
        if seconds:
            axes.plot(seconds,
                      range(101),
                      color=style['color'],
                      linewidth=2,
                      marker=style['marker'],
                      markevery=[50, 95, 99],
                      markersize=9,
                      markeredgecolor='white',
                      label=_percentiles(variant))
    axes.set(xlabel='Seconds from admission to answer', ylabel='Images answered (%)',
             ylim=(0, 102))
    axes.set_xlim(left=0)
    axes.set_title(f'Latency at {_in_flight(report)} requests in flight', fontweight='bold')
    finish(axes)
    _legend_below(figure, columns=1)
    return figure


def _draw_curve(axes: Axes, variant: Mapping[str, Any], style: Mapping[str, Any]) -> None:
    """A variant's curve, and a mark at its threshold."""
    curve, chosen = variant['curve'], variant['at_threshold']
    axes.plot(curve['recall'] + [0], curve['precision'] + curve['precision'][-1:],
              drawstyle='steps-post', color=style['color'], linewidth=style['width'])
    # Without a positive call there is no precision: only the legend's entry is left.
    point = ([], []) if chosen['precision']['value'] is None else (
        [chosen['recall']['value']], [chosen['precision']['value']])
    axes.plot(*point, marker=style['marker'], markersize=style['size'] + 2, color=style['color'],
              markeredgecolor='white', linewidth=2, clip_on=False, zorder=5,
              label=f'{short(variant["name"])}: average precision '
              f'{curve["average_precision"]:.3f}; marked: threshold '
              f'{variant["threshold"]["value"]:.3f}')


def _draw_quality(axes: Axes, report: Mapping[str, Any],
                  variants: Sequence[Tuple[Mapping[str, Any], Dict[str, Any]]]) -> None:
    """Dots with intervals, one row a metric and a variant, their values on the right."""
    ticks, lowest = [], 100.0
    for block, (metric, _) in enumerate(METRICS):
        top = block * (len(variants) + 0.8)
        ticks.append(top + (len(variants) - 1) / 2)
        for offset, (variant, style) in enumerate(variants):
            estimate = _positive(report, variant)[metric]
            row = top + offset
            if estimate['value'] is None:
                _note(axes, row, 'no value')
                continue
            value, low, high = (100 * estimate[end] for end in ('value', 'low', 'high'))
            axes.errorbar(value,
                          row,
                          xerr=[[value - low], [high - value]],
                          color=style['color'],
                          fmt=style['marker'],
                          markersize=8,
                          capsize=4,
                          linewidth=2,
                          clip_on=False)
            _note(axes, row, f'{value:.1f}  ({low:.1f} to {high:.1f})')
            lowest = min(lowest, low)
    axes.set_xlim(max(0, 5 * ((lowest - 1) // 5)), 100)
    axes.set_yticks(ticks, [title for _, title in METRICS], fontsize=12)
    axes.set_ylim(len(METRICS) * (len(variants) + 0.8) - 0.9, -0.9)
    axes.set_title('Answers: the positive label, with 95 % intervals', fontsize=12)
    axes.set_xlabel('%')
    finish(axes)
    axes.grid(axis='y', visible=False)


def _draw_speed(axes: Axes, report: Mapping[str, Any],
                variants: Sequence[Tuple[Mapping[str, Any], Dict[str, Any]]]) -> None:
    """Bars of images per minute with the slowest and the fastest window."""
    ratios = {pair['second']: pair['qpm_ratio'] for pair in report['comparisons']}
    fastest = 0.0
    for row, (variant, style) in enumerate(variants):
        speed = variant['throughput']
        if speed['qpm'] is None:
            axes.text(0, row, '  too few images', va='center', color=GREY)
            continue
        axes.barh(row, speed['qpm'], color=style['color'], height=0.55)
        axes.errorbar(speed['qpm'],
                      row,
                      capsize=4,
                      color='black',
                      linewidth=1.5,
                      xerr=[[speed['qpm'] - speed['low']], [speed['high'] - speed['qpm']]])
        ratio = ratios.get(variant['name'])
        text = f'{speed["qpm"]:,.0f}' + (f'  ({ratio["value"]:.2f}×)' if ratio else '')
        axes.annotate(text, (speed['high'], row),
                      xytext=(6, 0),
                      textcoords='offset points',
                      va='center',
                      fontsize=12,
                      fontweight='bold')
        fastest = max(fastest, speed['high'])
    axes.set_xlim(0, fastest * 1.45 or 1)
    axes.set_yticks(range(len(variants)), [short(variant['name']) for variant, _ in variants],
                    fontsize=12)
    axes.set_ylim(len(variants) - 0.4, -0.6)
    axes.set_title('Speed: median, slowest and fastest window', fontsize=12)
    axes.set_xlabel('Images per minute in steady state')
    finish(axes)
    axes.grid(axis='y', visible=False)


def _styled(report: Mapping[str, Any]) -> List[Tuple[Mapping[str, Any], Dict[str, Any]]]:
    """The variants with answers, each with its colour, marker and line width."""
    variants = [variant for variant in report['variants'] if variant['images']]
    return [(variant, {
        'color': COLOURS[number % len(COLOURS)],
        'marker': MARKERS[number % len(MARKERS)],
        # Variants that agree draw one curve over another: the first is wider and still shows.
        'width': 5 if number == 0 and len(variants) > 1 else 2,
        'size': 11 if number == 0 and len(variants) > 1 else 7,
    }) for number, variant in enumerate(variants)]


def _positive(report: Mapping[str, Any], variant: Mapping[str, Any]) -> Mapping[str, Any]:
    """A variant's figures of the positive label."""
    return next(metrics for metrics in variant['answers']['labels']
                if metrics['label'] == report['settings']['positive'])


def _names(report: Mapping[str, Any]) -> str:
    """'stock against patched', or 'stock against 4 variants'."""
    first, *others = [short(variant['name']) for variant, _ in _styled(report)] or ['No answers']
    if not others:
        return first
    return f'{first} against ' + (' and '.join(others) if len(others) < 3 else
                                  f'{len(others)} variants')


def short(name: str) -> str:
    """A name that fits: of a long one the beginning and the end, which tell variants apart."""
    half = NAME_WIDTH // 2
    return name if len(name) <= NAME_WIDTH else f'{name[:half]}…{name[1 - half:]}'


def images_of(report: Mapping[str, Any]) -> str:
    """'120 test images'."""
    split = report['settings']['test_split']
    return f'{report["images"][split]["images"]:,} {split} images'


def _in_flight(report: Mapping[str, Any]) -> str:
    """'8', or '8, 4' where the variants differ."""
    numbers = [variant['latency']['concurrency'] for variant, _ in _styled(report)]
    return ', '.join(map(str, dict.fromkeys(numbers)))


def _percentiles(variant: Mapping[str, Any]) -> str:
    """A variant's legend entry in the latency picture."""
    seconds = variant['latency']
    return (f'{short(variant["name"])}: p50 {seconds["p50"]:.2f} s, p95 {seconds["p95"]:.2f} s, '
            f'p99 {seconds["p99"]:.2f} s')


def _note(axes: Axes, row: float, text: str) -> None:
    """A remark at the right of the axes, at the height of a row."""
    axes.annotate(text, (1, row),
                  xytext=(14, 0),
                  xycoords=axes.get_yaxis_transform(),
                  textcoords='offset points',
                  va='center',
                  fontsize=10.5)


def finish(axes: Axes) -> None:
    """Light grid, no frame at the top and on the right."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(color='#DDDDDD', linewidth=0.8)
    axes.set_axisbelow(True)


def _legend_below(figure: Figure, columns: int) -> None:
    """What is drawn in the first axes, named below them: there it covers nothing."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc='outside lower center', ncols=columns, frameon=False)
