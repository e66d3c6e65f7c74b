"""The picture of `bench-vit`, drawn from its result; colours and markers of eval/plots.py."""
from pathlib import Path
from typing import Any, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ..plots import COLOURS, DPI, GREY, MARKERS, finish
from .vit_table import machine, model_name, setup_of, speeds
from .vit_ways import TITLES

# one way more than there are variants of a report
STYLES = dict(zip(TITLES, zip((*COLOURS, '#56B4E9'), (*MARKERS, 'X'))))


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Milliseconds a batch on the left, tiles a second on the right, by batch size."""
    figure = Figure(figsize=(14, 6.4), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    times, rates = figure.subplots(1, 2)
    _draw(times, result, 'ms', 'Milliseconds a batch')
    times.set_yscale('log')
    times.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.yaxis.set_major_formatter('{x:g}')
    times.yaxis.set_minor_locator(NullLocator())
    times.legend(frameon=False, loc='upper left')
    _draw(rates, result, 'tiles_per_second', 'Tiles a second')
    rates.set_ylim(bottom=0)
    figure.suptitle(f'Vision tower and projector of {model_name(result)}, '
                    f'{setup_of(result)["dtype"]}', fontsize=15, fontweight='bold')
    figure.supxlabel(f'{machine(result)}; torch {result["versions"]["torch"]}; medians of runs in '
                     f'turn, from uint8 tiles on the device to features', fontsize=10, color=GREY)
    figure.savefig(path, dpi=DPI)


def _draw(axes: Axes, result: Mapping[str, Any], field: str, title: str) -> None:
    """A line a way over the batch sizes."""
    ways, cells = speeds(result['rows'])
    sizes = sorted(cells)
    for way in ways:
        colour, marker = STYLES[way]
        axes.plot(sizes, [cells[size][way][field] for size in sizes], color=colour, marker=marker,
                  markersize=8, markeredgecolor='white', linewidth=2, label=TITLES[way])
    axes.set_xscale('log', base=2)
    axes.set_xticks(sizes, map(str, sizes), fontsize=9)
    axes.minorticks_off()
    axes.set_xlabel('Tiles in a batch (log scale)')
    axes.set_title(title, fontsize=12)
    finish(axes)
