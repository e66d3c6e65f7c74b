"""The picture of `bench-images`, drawn from its result; colours and markers of eval/plots.py."""
from pathlib import Path
from typing import Any, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from ..plots import COLOURS, DPI, GREY, MARKERS
from .scope import NATIVE, SAME_TILES, STOCK

WAYS = ((STOCK, 'stock LMDeploy'), (SAME_TILES, 'the same tiles, ours'),
        (NATIVE, 'native tiles, ours'))
WANTED_DB = 44
Row = Mapping[str, Any]


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Milliseconds an image by size on the left, PSNR against stock's tiles on the right."""
    figure = Figure(figsize=(14, 6.4), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.1)
    speed, fidelity = figure.subplots(1, 2, width_ratios=(2, 1))
    rows = [row for row in result['rows'] if row['part'] == 'size']
    _draw_speed(speed, [row for row in rows if row['format'] == 'JPEG'])
    _draw_fidelity(fidelity, [row for row in rows if row['way'] == SAME_TILES],
                   [row for row in result['rows'] if row['part'] == 'photographs'
                    and row['way'] == SAME_TILES and row['psnr_median_db'] is not None])
    figure.suptitle('Image preprocessing on one thread, from a file to what the GPU gets',
                    fontsize=15, fontweight='bold')
    figure.supxlabel(f'LMDeploy {result["versions"]["lmdeploy"]} on {result["machine"]["cpu"]}; '
                     f'medians of runs in turn', fontsize=10, color=GREY)
    figure.savefig(path, dpi=DPI)


def _draw_speed(axes: Axes, rows: Sequence[Row]) -> None:
    """A line a way over the sizes, with how many times faster than stock at each point."""
    sizes = list(dict.fromkeys(row['size'] for row in rows))
    lines = {way: [next(row for row in rows if (row['size'], row['way']) == (size, way))
                   for size in sizes] for way, _ in WAYS}
    for number, (way, title) in enumerate(WAYS):
        axes.plot(range(len(sizes)), [row['total_ms'] for row in lines[way]],
                  color=COLOURS[number], marker=MARKERS[number], markersize=8, linewidth=2,
                  label=title)
    for place, pair in enumerate(zip(lines[SAME_TILES], lines[NATIVE])):
        _label_ratios(axes, place, pair)
    axes.set_yscale('log')
    axes.margins(y=0.12)
    axes.yaxis.set_major_formatter('{x:g}')
    tokens = [f'{stock["tokens"]:,}\n→ {native["tokens"]:,}'
              for stock, native in zip(lines[STOCK], lines[NATIVE])]
    axes.set_xticks(range(len(sizes)), map('\n'.join, zip(sizes, tokens)), fontsize=10)
    axes.set_xlabel('Size in pixels; image tokens of stock → native')
    axes.set_ylabel('Milliseconds a JPEG (log scale)')
    axes.set_title('Time; × is how many times faster than stock', fontsize=12)
    axes.legend(frameon=False, loc='upper left')
    _finish(axes)


def _label_ratios(axes: Axes, place: int, pair: Sequence[Row]) -> None:
    """Both ways' ratios at a size: the slower way's above its point, the faster one's below."""
    slower = max(range(2), key=lambda number: pair[number]['total_ms'])
    for number, row in enumerate(pair):
        axes.annotate(f'{row["ratio"]:.1f}×', (place, row['total_ms']),
                      xytext=(0, 9 if number == slower else -19), textcoords='offset points',
                      ha='center', fontsize=10, color=COLOURS[number + 1], fontweight='bold',
                      path_effects=[withStroke(linewidth=3, foreground='white')])


def _draw_fidelity(axes: Axes, rows: Sequence[Row], folders: Sequence[Row]) -> None:
    """A dot a size and format, and a bar from least to median for each folder of photographs."""
    sizes = list(dict.fromkeys(row['size'] for row in rows))
    forms = list(dict.fromkeys(row['format'] for row in rows))
    for number, form in enumerate(forms):
        own = [row for row in rows if row['format'] == form and row['psnr_db'] is not None]
        # A little apart in height: the formats differ by less than a marker's width.
        apart = 0.22 * (number - (len(forms) - 1) / 2)
        axes.plot([row['psnr_db'] for row in own],
                  [sizes.index(row['size']) + apart for row in own], linestyle='none',
                  marker=MARKERS[3 + number], color=COLOURS[3 + number], markersize=7, label=form)
    names = list(sizes)
    for row in folders:
        axes.plot([row['psnr_least_db'], row['psnr_median_db']], [len(names)] * 2,
                  color=COLOURS[0], linewidth=2, marker='|', markersize=12)
        axes.annotate(f'{row["psnr_median_db"]:.1f}', (row['psnr_median_db'], len(names)),
                      xytext=(7, 0), textcoords='offset points', va='center', fontsize=10)
        names.append(f'{row["folder"]}: {row["images"]} images,\nleast to median')
    axes.axvline(WANTED_DB, color=GREY, linestyle='--', linewidth=1.2,
                 label=f'{WANTED_DB} dB: wanted median of photographs')
    axes.set_yticks(range(len(names)), names, fontsize=10)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel('PSNR in dB (not drawn where identical)')
    axes.set_title("The same tiles' pixels against stock's", fontsize=12)
    axes.legend(frameon=False, loc='upper center', bbox_to_anchor=(0.4, -0.13), ncols=2)
    _finish(axes)


def _finish(axes: Axes) -> None:
    """Light grid, no frame at the top and on the right."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(color='#DDDDDD', linewidth=0.8)
    axes.set_axisbelow(True)
