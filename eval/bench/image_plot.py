"""The picture of `bench-images`, drawn from its result; colours and markers of eval/plots.py."""
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..plots import COLOURS, DPI, GREY, MARKERS
from .scope import NATIVE, SAME_TILES, STOCK

WAYS = ((STOCK, 'stock LMDeploy'), (SAME_TILES, 'the same tiles, ours'),
        (NATIVE, 'native tiles, ours'))
WANTED_DB = 44
Row = Mapping[str, Any]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Milliseconds an image by size on the left, PSNR against stock's tiles on the right."""
    figure = Figure(figsize=(13, 6.2), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    speed, fidelity = figure.subplots(1, 2, width_ratios=(1.7, 1))
    rows = [row for row in result['rows'] if row['part'] == 'size']
    _draw_speed(speed, [row for row in rows if row['format'] == 'JPEG'])
    _draw_fidelity(fidelity, [row for row in rows if row['way'] == SAME_TILES],
                   [row for row in result['rows'] if row['part'] == 'photographs'
                    and row['way'] == SAME_TILES and row['psnr_median_db'] is not None])
    figure.suptitle('Image preprocessing, from a JPEG file to tiles, one thread', fontsize=15,
                    fontweight='bold')
    figure.supxlabel(f'LMDeploy {result["versions"]["lmdeploy"]} on {result["machine"]["cpu"]}; '
                     f'medians of runs in turn', fontsize=10, color=GREY)
    figure.savefig(path, dpi=DPI)


def _draw_speed(axes: Axes, rows: Sequence[Row]) -> None:
    """A line a way over the sizes, with how many times faster than stock at each point."""
    sizes = list(dict.fromkeys(row['size'] for row in rows))
    for number, (way, title) in enumerate(WAYS):
        own = {row['size']: row for row in rows if row['way'] == way}
        times = [own[size]['total_ms'] for size in sizes]
        axes.plot(range(len(sizes)), times, color=COLOURS[number], marker=MARKERS[number],
                  markersize=8, linewidth=2, label=title)
        if way != STOCK:
            # above the upper line and below the lower one, so that no label covers a line
            offset = 9 if way == SAME_TILES else -17
            for place, size in enumerate(sizes):
                axes.annotate(f'{own[size]["ratio"]:.1f}×', (place, times[place]),
                              xytext=(0, offset), textcoords='offset points', ha='center',
                              fontsize=10, color=COLOURS[number], fontweight='bold')
    axes.set_yscale('log')
    axes.margins(y=0.12)
    axes.yaxis.set_major_formatter('{x:g}')
    axes.set_xticks(range(len(sizes)), [f'{size}\n{_tokens(rows, size)}' for size in sizes],
                    fontsize=9)
    axes.set_xlabel('Image size in pixels; image tokens of stock → native')
    axes.set_ylabel('Milliseconds an image (log scale)')
    axes.set_title('Time; × is how many times faster than stock', fontsize=12)
    axes.legend(frameon=False, loc='upper left')
    _finish(axes)


def _tokens(rows: Sequence[Row], size: str) -> str:
    """'3328 → 512'."""
    tokens = {row['way']: row['tokens'] for row in rows if row['size'] == size}
    return f'{tokens[STOCK]} → {tokens[NATIVE]}'


def _draw_fidelity(axes: Axes, rows: Sequence[Row], folders: Sequence[Row]) -> None:
    """A dot a size and format, and a bar from least to median for each folder of photographs."""
    sizes = list(dict.fromkeys(row['size'] for row in rows))
    formats: Dict[str, List[Row]] = {}
    for row in rows:
        if row['psnr_db'] is not None:
            formats.setdefault(row['format'], []).append(row)
    for number, (form, own) in enumerate(formats.items()):
        axes.plot([row['psnr_db'] for row in own], [sizes.index(row['size']) for row in own],
                  linestyle='none', marker=MARKERS[number], color=COLOURS[number + 1],
                  markersize=8, alpha=0.8, label=form)
    names = list(sizes)
    for row in folders:
        axes.plot([row['psnr_least_db'], row['psnr_median_db']], [len(names)] * 2,
                  color=COLOURS[0], linewidth=2, marker='|', markersize=12)
        axes.annotate(f'{row["psnr_median_db"]:.1f}', (row['psnr_median_db'], len(names)),
                      xytext=(7, 0), textcoords='offset points', va='center', fontsize=10)
        names.append(f'{row["folder"]}: {row["images"]} photographs\n(least to median)')
    axes.axvline(WANTED_DB, color=GREY, linestyle='--', linewidth=1.2)
    axes.annotate(f'wanted median\nof photographs: {WANTED_DB}', (WANTED_DB, 0),
                  xytext=(-6, 0), textcoords='offset points', ha='right', va='center',
                  fontsize=9, color=GREY)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel('PSNR in dB')
    axes.set_title("Pixels of the same tiles against stock's", fontsize=12)
    axes.legend(frameon=False, loc='lower right')
    _finish(axes)


def _finish(axes: Axes) -> None:
    """Light grid, no frame at the top and on the right."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(color='#DDDDDD', linewidth=0.8)
    axes.set_axisbelow(True)
