"""The picture of a sweep: recall and precision against image tokens and images per minute.

Stock is grey, with circles and a solid line; the others are blue, with squares and a dashed one:
readable without colours. Every point carries its name.
"""
from pathlib import Path
from typing import Any, List, Mapping, NamedTuple, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from .plots import COLOURS, DPI, finish, images_of, short

STOCK_STYLE = {'color': COLOURS[0], 'marker': 'o', 'linestyle': '-'}
OUR_STYLE = {'color': COLOURS[1], 'marker': 's', 'linestyle': '--'}
STYLES = ((True, 'upstream, capped by max_dynamic_patch', STOCK_STYLE),
          (False, 'lmdeploy-ext', OUR_STYLE))
METRICS = (('recall', 'Recall (%)'), ('precision', 'Precision (%)'))
#: Where a name may stand beside its point, in points of a length; the first that is free is taken.
OFFSETS = tuple((side * 7, up) for up in (6, -15, 18, -27, 30, -39, 42, -51) for side in (1, -1))
MARKER = 8  # points


class Place(NamedTuple):
    """A variant in a panel, in the panel's units; `down` and `up` are its interval's lengths."""
    x: float
    y: float
    down: float
    up: float
    name: str


def draw(report: Mapping[str, Any], folder: Path) -> Path:
    """Draw sweep.png of a report that holds a sweep."""
    path = folder / 'sweep.png'
    sweep_figure(report).savefig(path, dpi=DPI)
    return path


def sweep_figure(report: Mapping[str, Any]) -> Figure:
    """Recall above, precision below; against tokens on the left, against speed on the right."""
    sweep = report['sweep']
    figure = Figure(figsize=(15, 10), layout='constrained', dpi=DPI)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    panels = figure.subplots(2, 2, sharey='row', sharex='col')
    kind = 'Input tokens, prompt included' if sweep['prompt_tokens'] is None else 'Image tokens'
    named = []
    for (metric, title), row in zip(METRICS, panels):
        row[0].set_ylabel(title)
        named += [(axes, _draw_panel(axes, sweep, metric, across))
                  for axes, across in zip(row, ('tokens', 'qpm'))]
    for axes, title in zip(panels[1], (f'{kind} of an image, mean', 'Images per minute')):
        axes.set(xlabel=title, xscale='log')
        axes.margins(x=0.12)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter('{x:,.0f}')
        axes.xaxis.set_minor_locator(NullLocator())
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc='outside lower center', ncols=2,
                  frameon=False)
    figure.suptitle(f'Tile settings on {images_of(report)}, answers as given, 95 % intervals',
                    fontsize=15, fontweight='bold')
    figure.draw_without_rendering()  # names are placed by where everything stands
    for axes, places in named:
        _name(axes, places)
    return figure


def _draw_panel(axes: Axes, sweep: Mapping[str, Any], metric: str, across: str) -> List[Place]:
    """A metric against tokens or images per minute, a line for each side."""
    drawn = []
    for stock, label, style in STYLES:
        places = _places(sweep, stock, metric, across)
        if places:
            x, y, down, up, _ = zip(*places)
            axes.plot(x, y, label=label, markersize=MARKER, linewidth=2, zorder=3, **style)
            axes.errorbar(x, y, yerr=[down, up], fmt='none', color=style['color'], alpha=0.45,
                          elinewidth=1, capsize=3)
        drawn += places
    finish(axes)
    return drawn


def _places(sweep: Mapping[str, Any], stock: bool, metric: str, across: str) -> List[Place]:
    """The variants of one side in order of their tokens, in percent."""
    found = []
    for point in sorted(sweep['points'], key=lambda point: point['tokens']):
        estimate = point['answers'][metric]
        if point['stock'] != stock or point[across] is None or estimate['value'] is None:
            continue
        value, low, high = (100 * estimate[end] for end in ('value', 'low', 'high'))
        found.append(Place(point[across], value, value - low, high - value, point['name']))
    return found


def _name(axes: Axes, places: Sequence[Place]) -> None:
    """Write each point's name where it covers no other name and no point."""
    scale = axes.figure.dpi / 72
    taken = [_square(axes.transData.transform((place.x, place.y)), MARKER * scale)
             for place in places]
    for place in places:
        for x, y in OFFSETS:
            text = axes.annotate(short(place.name), (place.x, place.y), xytext=(x, y),
                                 textcoords='offset points', fontsize=9, zorder=4,
                                 ha='left' if x > 0 else 'right')
            text.set_in_layout(False)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken) or (x, y) == OFFSETS[-1]:
                break
            text.remove()
        taken.append(box)


def _square(centre: Sequence[float], side: float) -> Bbox:
    x, y = centre
    return Bbox.from_extents(x - side / 2, y - side / 2, x + side / 2, y + side / 2)
