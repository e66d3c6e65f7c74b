"""The picture of a sweep: recall and precision against image tokens and images per minute.

Stock is grey, with circles and a solid line; the others are blue, with squares and a dashed one:
readable without colours. Every point carries its name.
"""
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .plots import COLOURS, DPI, finish, images_of, short

STYLES = ((True, 'upstream, max_dynamic_patch', {'color': COLOURS[0], 'marker': 'o',
                                                 'linestyle': '-'}),
          (False, 'lmdeploy-ext', {'color': COLOURS[1], 'marker': 's', 'linestyle': '--'}))
METRICS = (('recall', 'Recall (%)'), ('precision', 'Precision (%)'))


def draw(report: Mapping[str, Any], folder: Path) -> Path:
    """Draw sweep.png of a report that holds a sweep."""
    path = folder / 'sweep.png'
    sweep_figure(report).savefig(path, dpi=DPI)
    return path


def sweep_figure(report: Mapping[str, Any]) -> Figure:
    """Recall above, precision below; against tokens on the left, against speed on the right."""
    sweep = report['sweep']
    figure = Figure(figsize=(14, 10), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    panels = figure.subplots(2, 2, sharey='row', sharex='col')
    kind = 'Input tokens, prompt included' if sweep['prompt_tokens'] is None else 'Image tokens'
    for (metric, title), (by_tokens, by_speed) in zip(METRICS, panels):
        _draw_panel(by_tokens, sweep, metric, 'tokens')
        _draw_panel(by_speed, sweep, metric, 'qpm')
        by_tokens.set_ylabel(title)
    panels[1][0].set_xlabel(f'{kind} of an image, mean')
    panels[1][1].set_xlabel('Images per minute in steady state')
    for axes in panels[1]:
        axes.set_xscale('log')
        axes.xaxis.set_major_formatter('{x:,.0f}')
        axes.xaxis.set_minor_formatter('{x:,.0f}')
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc='outside lower center', ncols=2, frameon=False)
    figure.suptitle(f'Tile settings on {images_of(report)}, answers as given, 95 % intervals',
                    fontsize=15, fontweight='bold')
    return figure


def _draw_panel(axes: Axes, sweep: Mapping[str, Any], metric: str, place: str) -> None:
    """A metric against tokens or images per minute, a line for each side."""
    for stock, label, style in STYLES:
        points = _places(sweep, stock, metric, place)
        if not points:
            continue
        x, y, low, high, names = zip(*points)
        axes.errorbar(x, y, yerr=[low, high], label=label, markersize=8, capsize=3, linewidth=2,
                      elinewidth=1, **style)
        for number, (name, across, up) in enumerate(zip(names, x, y)):
            # Neighbours are often near: names go below and above in turn.
            below = (number % 2 == 0) == stock
            axes.annotate(short(name), (across, up), xytext=(6, -14 if below else 8),
                          textcoords='offset points', fontsize=9, color=style['color'])
    finish(axes)


def _places(sweep: Mapping[str, Any], stock: bool, metric: str,
            place: str) -> List[Tuple[float, float, float, float, str]]:
    """Of one side, in order of x: x, value, and how far its interval goes down and up, in percent;
    the name."""
    found = []
    for point in sweep['points']:
        estimate: Mapping[str, Optional[float]] = point['answers'][metric]
        if point['stock'] != stock or point[place] is None or estimate['value'] is None:
            continue
        value, low, high = (100 * estimate[end] for end in ('value', 'low', 'high'))
        found.append((point[place], value, value - low, high - value, point['name']))
    return sorted(found)
