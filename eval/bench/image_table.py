"""The result of `bench-images` as a person reads it: Markdown, and a summary for the terminal."""
import shlex
import statistics
from typing import Any, List, Mapping, Sequence

from .scope import NATIVE, SAME_TILES, STOCK, UPSTREAM_PIXELS
from .text_table import markdown, plain, target_lines

Row = Mapping[str, Any]
NONE = '–'
QUIET = 0.95  # share of the time that this process must get


def table(result: Mapping[str, Any]) -> str:
    """The whole result in Markdown."""
    rows = result['rows']
    lines = [
        '# Image preprocessing: stock LMDeploy against lmdeploy-ext', '',
        f'`{shlex.join(result["command"])}` at commit {result["commit"]["id"][:12]}'
        f'{" (changed)" if result["commit"]["dirty"] else ""}, {result["machine"]["cpu"]}, '
        f'{result["machine"]["cores"]} cores, LMDeploy {result["versions"]["lmdeploy"]}.', '',
        'From a file to what is copied to the device, medians of runs in turn on one thread: '
        'stock ends with one normalised float16 tensor, ours with uint8 tiles that the GPU '
        'normalises. Stock\'s last summand is what its `forward` does beside the tiles: an RGB '
        'copy, one tensor of all tiles, float16. *Same tiles* are stock\'s '
        'grid, made by this pipeline; PSNR compares their pixels with stock\'s. '
        f'*Upstream pixels* were {_identical(rows)}.', '', *_busy(rows),
        *markdown(_sizes(rows)), '', '## All cores', '',
        *markdown(_cores(rows)), '', '## Peak memory', '',
        'Growth of a fresh process over what it held after its imports and a 64x48 image.', '',
        *markdown(_memory(rows)), '', '## Photographs', '', *markdown(_photographs(rows)), '',
        'Files whose EXIF orientation turns them are compared with upstream\'s code on the '
        'upright image.', '', '## Targets', '', *markdown(target_lines(result['targets'])), ''
    ]
    return '\n'.join(lines)


def summary(result: Mapping[str, Any]) -> str:
    """One line a size and format, then the targets, for the terminal."""
    rows = result['rows']
    return '\n'.join([*plain(_sizes(rows)), '', *_busy(rows),
                      *plain(target_lines(result['targets']))])


def _busy(rows: Sequence[Row]) -> List[str]:
    """A warning where other processes took a part of the time, and an empty line."""
    share = statistics.median(row['cpu_share'] for row in rows if row['part'] == 'size')
    if share >= QUIET:
        return []
    return [f'**The machine was busy**: other processes took {1 - share:.0%} of the time. Ratios '
            f'of short times look better than they are, shares of all cores worse; run it again '
            f'on a quiet machine.', '']


def _sizes(rows: Sequence[Row]) -> List[List[str]]:
    """One line a file of the table."""
    lines = [['image', 'stock ms (decode + cut + hand over)', 'same tiles ms', 'ratio', 'PSNR dB',
              'upstream pixels ms', 'native ms (decode + cut)', 'ratio', 'tokens']]
    cells = dict.fromkeys((row['size'], row['format']) for row in rows if row['part'] == 'size')
    for size, form in cells:
        ways = {row['way']: row for row in rows if row['part'] == 'size'
                and (row['size'], row['format']) == (size, form)}
        stock, same, native = ways[STOCK], ways[SAME_TILES], ways[NATIVE]
        lines.append([
            f'{size} {form}', _phases(stock), f'{same["total_ms"]:.1f}', f'{same["ratio"]:.1f}×',
            _psnr(same), f'{ways[UPSTREAM_PIXELS]["total_ms"]:.1f}', _phases(native),
            f'{native["ratio"]:.1f}×', f'{stock["tokens"]:,} → {native["tokens"]:,}'])
    return lines


def _identical(rows: Sequence[Row]) -> str:
    """'identical to stock's in 27 of 27 files'."""
    own = [row['identical'] for row in rows
           if row['part'] == 'size' and row['way'] == UPSTREAM_PIXELS]
    return f'identical to stock\'s in {sum(own)} of {len(own)} files'


def _phases(row: Row) -> str:
    """'61.2 (3.4 + 55.8 + 2.0)'; '3.1 (1.0 + 2.1)' where nothing is left to hand over."""
    phases = [row[name] for name in ('decode_ms', 'cut_ms', 'hand_over_ms') if row[name]]
    return f'{row["total_ms"]:.1f} ({" + ".join(f"{phase:.1f}" for phase in phases)})'


def _psnr(row: Row) -> str:
    """Decibels, or that there is no difference."""
    if row['identical']:
        return 'identical'
    return NONE if row['psnr_db'] is None else f'{row["psnr_db"]:.1f}'


def _cores(rows: Sequence[Row]) -> List[List[str]]:
    """One line an image and a way."""
    return [['image', 'way', 'images/s, one thread', 'all cores', 'share of linear']] + [[
        row['image'], row['way'], f'{row["one_thread"]:.1f}',
        f'{row["all_cores"]:.1f} ({row["cores"]} cores)', f'{row["share_of_linear"]:.2f}'
    ] for row in rows if row['part'] == 'cores']


def _memory(rows: Sequence[Row]) -> List[List[str]]:
    """One line an image and a way."""
    return [['image', 'way', 'peak MiB', 'decoded image MiB', 'multiple']] + [[
        row['image'], row['way'], f'{row["peak_mib"]:.0f}', f'{row["decoded_mib"]:.0f}',
        f'{row["multiple"]:.2f}'
    ] for row in rows if row['part'] == 'memory']


def _photographs(rows: Sequence[Row]) -> List[List[str]]:
    """One line a folder and a way."""
    lines = [['folder', 'images', 'way', 'mean ms', 'ratio', 'mean tokens',
              'PSNR dB, median (least)']]
    for row in rows:
        if row['part'] == 'photographs':
            left_out = row['not_images'] + row['unreadable']
            median, least = row['psnr_median_db'], row['psnr_least_db']
            lines.append([
                row['folder'],
                f'{row["images"]} ({row["turned"]} turned, {left_out} files left out)',
                row['way'], f'{row["mean_ms"]:.1f}', f'{row["ratio"]:.1f}×',
                f'{row["mean_tokens"]:,.0f}',
                NONE if median is None or least is None else f'{median:.1f} ({least:.1f})'])
    return lines
