"""The result of `bench-vit` as a person reads it: Markdown, and a summary for the terminal."""
import shlex
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .text_table import markdown, plain, target_lines
from .vit_ways import STOCK, TITLES

Row = Mapping[str, Any]
BUSY = 0.3  # of the cores at work before the run
NONE = '–'


def table(result: Mapping[str, Any]) -> str:
    """The whole result in Markdown."""
    rows, setup = result['rows'], setup_of(result)
    lines = [
        '# The vision encoder: stock InternViT against lmdeploy-ext', '',
        f'`{shlex.join(result["command"])}` at commit {result["commit"]["id"][:12]}'
        f'{" (changed)" if result["commit"]["dirty"] else ""}, {machine(result)}, '
        f'torch {result["versions"]["torch"]}.', '',
        f'Vision tower and projector of {model_name(result)}, random weights, '
        f'{setup["dtype"]}, tiles of {setup["side"]} pixels. Medians of runs in turn, from uint8 '
        f'tiles on the device to features; × is how many times faster than stock in the same run. '
        f'*Cosine* is the least of all rows of features with stock\'s.', '', *_busy(result),
        '## Milliseconds', '', *markdown(_times(rows)), '', '## Tiles a second', '',
        *markdown(_speeds(rows)), '', *_graphs(rows), *_left_out(rows), '## Tile scheduler', '',
        *_scheduler(rows), '', '## Targets', '', *markdown(target_lines(result['targets'])), ''
    ]
    return '\n'.join(lines)


def summary(result: Mapping[str, Any]) -> str:
    """The times, then the targets, for the terminal."""
    return '\n'.join([*plain(_times(result['rows'])), '', *_busy(result),
                      *_left_out(result['rows']), *plain(target_lines(result['targets']))])


def setup_of(result: Mapping[str, Any]) -> Row:
    """What was measured, on what."""
    return next(row for row in result['rows'] if row['part'] == 'setup')


def model_name(result: Mapping[str, Any]) -> str:
    """'InternVL2-8B', or 'the demo model' for a shape that was not released."""
    shape = setup_of(result)['shape']
    return f'InternVL2-{shape.upper()}' if shape[0].isdigit() else f'the {shape} model'


def machine(result: Mapping[str, Any]) -> str:
    """'2 × NVIDIA H200', or the CPU and its cores."""
    setup = setup_of(result)
    if setup['device'] == 'cpu':
        return f'{result["machine"]["cpu"]}, {setup["threads"]} threads'
    return (f'{setup["devices"]} × ' if setup['devices'] > 1 else '') + setup['device_name']


def speeds(rows: Sequence[Row]) -> Tuple[List[str], Dict[int, Dict[str, Row]]]:
    """The ways in the order of their titles, and the rows by batch size and way."""
    cells: Dict[int, Dict[str, Row]] = {}
    for row in rows:
        if row['part'] == 'speed':
            cells.setdefault(row['tiles'], {})[row['way']] = row
    measured = set().union(*cells.values()) if cells else set()
    return [way for way in TITLES if way in measured], cells


def _times(rows: Sequence[Row]) -> List[List[str]]:
    """One line a batch size, and one of cosines."""
    ways, cells = speeds(rows)
    lines = [['tiles', *(TITLES[way] for way in ways)]]
    lines += [[str(size), *(_time(cells[size][way]) for way in ways)] for size in cells]
    least = (min(cells[size][way]['cosine'] for size in cells) for way in ways)
    return lines + [['cosine', *(NONE if way == STOCK else f'{cosine:.6f}'
                                 for way, cosine in zip(ways, least))]]


def _time(row: Row) -> str:
    """'4.5 (2.9×)'."""
    ratio = '' if row['way'] == STOCK else f' ({row["ratio"]:.2f}×)'
    return f'{row["ms"]:.2f}{ratio}'


def _speeds(rows: Sequence[Row]) -> List[List[str]]:
    """One line a batch size."""
    ways, cells = speeds(rows)
    return [['tiles', *(TITLES[way] for way in ways)]] + [
        [str(size), *(f'{cells[size][way]["tiles_per_second"]:.1f}' for way in ways)]
        for size in cells]


def _graphs(rows: Sequence[Row]) -> List[str]:
    """The graphs' memory, with its heading; nothing without graphs."""
    lines = [[TITLES[row['way']], str(row['graphs']), f'{row["mib"]:.0f}',
              f'{row["device_mib"]:.0f}', f'{row["capture_seconds"]:.1f}']
             for row in rows if row['part'] == 'graphs']
    if not lines:
        return []
    header = ['way', 'graphs', 'MiB they hold', 'MiB less on the device', 's to capture']
    return ['## CUDA graphs', '', *markdown([header, *lines]), '']


def _left_out(rows: Sequence[Row]) -> List[str]:
    """Ways that could not be measured, one line each."""
    return [line for row in rows if row['part'] == 'left out'
            for line in (f'Not measured: {TITLES[row["way"]]}: {row["reason"]}', '')]


def _scheduler(rows: Sequence[Row]) -> List[str]:
    """A line, on a GPU two."""
    row = next(row for row in rows if row['part'] == 'scheduler')
    lines = [f'A batch of {row["images"]} images of one tile, without computation and from rest: '
             f'{row["wall_ms"]:.3f} ms from the first `submit` to the last result, '
             f'{row["cpu_ms"]:.3f} ms CPU time of all threads.']
    if 'added_ms' in row:
        lines.append(f'With computation, while more images wait: a batch takes '
                     f'{row["added_ms"]:.3f} ms longer than the model alone.')
    return lines


def _busy(result: Mapping[str, Any]) -> List[str]:
    """A warning where others were at work when the run began, and an empty line."""
    setup, cores = setup_of(result), result['machine']['cores']
    if setup['load'] < BUSY * cores:
        return []
    return [f'**The machine was busy**: a load of {setup["load"]:.1f} on {cores} cores when the '
            f'run began. Times are too long, ratios uncertain; run it again on a quiet machine.',
            '']
