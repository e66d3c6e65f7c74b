"""`make bench-vit`: the vision encoder, stock against ours, in one run.

    python -m lmdeploy_ext.eval.bench.vit [--device cpu|cuda] [--shape 8b|1b|2b|demo]
        [--dtype float16|bfloat16|float32] [--tiles 1,2,4] [--ways eager,graphs] [--quick]

Stock is the reference's `extract_feature` with attention written out, as stock LMDeploy computes
it, normalising included. Beside the JSON file it writes the table (.md) and a picture (.png).
"""
import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import psutil
import torch

from lmdeploy_ext.models.checkpoint import DTYPES
from lmdeploy_ext.models.shapes import SHAPES
from lmdeploy_ext.vision.backend import VisionBackend

from ..errors import EvalError
from ..provenance import REPOSITORY, write_result
from .files import write_beside
from .measured import measured_commit, slug
from .scheduler_overhead import added_ms, scheduler_overhead
from .vit_plot import draw
from .vit_speed import FULL, QUICK, speed_rows
from .vit_table import summary, table
from .vit_targets import TILES_OF_REPLICAS, targets
from .vit_ways import EAGER, STOCK, build, chosen

RESULTS = REPOSITORY / 'eval' / 'results'
QUICK_OUT = REPOSITORY / 'eval' / 'runs' / 'bench-vit-quick.json'
SIZES = {'cuda': (1, 2, 4, 7, 8, 13, 26, 52, 104), 'cpu': (1, 2, 4, 7, 8, 13)}
IMAGES = 16  # of one tile each, in the scheduler's batches
MOST_TILES = 512  # above: nobody's batch
DEFAULTS = {'cuda': ('8b', 'float16'), 'cpu': ('demo', 'float32')}
INTERRUPTED = 130


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code: 0 measured (targets may be missed: the table says so), 2 wrong input, 130
    interrupted."""
    arguments = _parser().parse_args(argv)
    try:
        source = measured_commit(arguments.commit)
        devices = _devices(arguments.device)
        shape, dtype = DEFAULTS[devices[0].type]
        shape, dtype = arguments.shape or shape, arguments.dtype or dtype
        sizes = _sizes(arguments.tiles, devices)
        ways = chosen(None if arguments.ways is None else arguments.ways.split(','), devices)
        rows = run(devices, shape, dtype, sizes, ways, arguments.quick)
    except EvalError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; nothing was written', file=sys.stderr)
        return INTERRUPTED
    out = arguments.out or (QUICK_OUT if arguments.quick
                            else RESULTS / f'{_name(devices, shape, dtype)}.json')
    typed = ['python', '-m', f'{__package__}.vit', *(sys.argv[1:] if argv is None else argv)]
    write_result(out, command=typed, commit=source, rows=rows, targets=targets(rows))
    write_beside(out, table, draw, summary)
    return 0


def run(devices: Sequence[torch.device], shape: str, dtype: str, sizes: Sequence[int],
        ways: Sequence[str], quick: bool) -> List[Dict[str, Any]]:
    """Measure; returns the result's rows.

    Raises:
        EvalError: stock itself cannot run.
    """
    load = psutil.getloadavg()[0]
    backends, notes = build(ways, shape, devices, getattr(torch, dtype), max(sizes))
    if STOCK not in backends:
        raise EvalError(f'the stock vision tower of shape {shape} does not run in {dtype} on '
                        f'{devices[0]}: {notes[0]["reason"]}')
    setup = {
        'part': 'setup',
        'shape': shape,
        'dtype': dtype,
        'side': backends[STOCK].side,
        'device': str(devices[0]),
        'devices': len(devices),
        'device_name': (torch.cuda.get_device_name(devices[0])
                        if devices[0].type == 'cuda' else 'CPU'),
        'threads': torch.get_num_threads(),
        'load': round(load, 1)
    }
    speed = speed_rows(backends, sizes, QUICK if quick else FULL)
    return [setup, *notes, *speed, _scheduler_row(backends[STOCK], backends.get(EAGER), quick)]


def _scheduler_row(stock: VisionBackend, ours: Optional[VisionBackend],
                   quick: bool) -> Dict[str, Any]:
    """What the tile scheduler itself takes."""
    overhead = scheduler_overhead(stock.device, IMAGES, rounds=20 if quick else 500)
    row = {
        'part': 'scheduler',
        'images': IMAGES,
        'cpu_ms': round(overhead.cpu_ms, 4),
        'wall_ms': round(overhead.wall_ms, 4)
    }
    if stock.device.type == 'cuda' and ours is not None and ours.max_tiles >= IMAGES:
        row['added_ms'] = round(added_ms(ours, IMAGES, batches=2 if quick else 40), 4)
    return row


def _devices(name: Optional[str]) -> List[torch.device]:
    """The devices to measure on: of `cuda` all GPUs, of `cuda:1` that one."""
    name = name or ('cuda' if torch.cuda.is_available() else 'cpu')
    found = re.fullmatch(r'(cpu|cuda)(?::(\d+))?', name)
    if found is None or name.startswith('cpu:'):
        raise EvalError(f'--device is {name!r}; expected cpu, cuda (all GPUs) or cuda:NUMBER')
    if name == 'cpu':
        return [torch.device('cpu')]
    there_are = torch.cuda.device_count()
    numbers = range(there_are) if found[2] is None else [int(found[2])]
    if not numbers or max(numbers) >= there_are:
        raise EvalError(f'--device is {name!r} but torch sees {there_are} GPU(s); '
                        f'give one of those, or cpu')
    return [torch.device('cuda', number) for number in numbers]


def _sizes(typed: Optional[str], devices: Sequence[torch.device]) -> List[int]:
    """The batch sizes, in order, each once."""
    if typed is None:
        more = (TILES_OF_REPLICAS, ) if len(devices) > 1 else ()
        return sorted((*SIZES[devices[0].type], *more))
    parts = typed.split(',')
    if not all(re.fullmatch(r' *\d{1,4} *', part) and 1 <= int(part) <= MOST_TILES
               for part in parts):
        raise EvalError(f'--tiles is {typed!r}; expected batch sizes from 1 to {MOST_TILES}, '
                        f'such as 1,4,13')
    return sorted({int(part) for part in parts})


def _name(devices: Sequence[torch.device], shape: str, dtype: str) -> str:
    """'vit-cpu', 'vit-h200' or 'vit-h200-x2'; with shape and dtype where they are not the usual
    ones, whose results stay."""
    kind = devices[0].type
    parts = [kind]
    if kind == 'cuda':
        parts = [slug(torch.cuda.get_device_name(devices[0]))]
        parts += [f'x{len(devices)}'] if len(devices) > 1 else []
    parts += [given for given, usual in zip((shape, dtype), DEFAULTS[kind]) if given != usual]
    return '-'.join(['vit', *parts])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.bench.vit',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', help='cpu, cuda (all GPUs) or cuda:NUMBER [cuda where '
                        'there is one]')
    parser.add_argument('--shape', choices=SHAPES, help='whose vision tower [8b; demo on a CPU]')
    parser.add_argument('--dtype', choices=DTYPES, help='of weights and features [float16; '
                        'float32 on a CPU]')
    parser.add_argument('--tiles', metavar='N,N', help='batch sizes '
                        f'[{",".join(map(str, SIZES["cuda"]))}; fewer on a CPU]')
    parser.add_argument('--ways', metavar='NAME,NAME', help='what to measure beside stock [all '
                        'that the device has]')
    parser.add_argument('--quick', action='store_true',
                        help='each batch size once: seconds, and figures to ignore')
    parser.add_argument('--commit', metavar='ID', help='what is measured, where the code was '
                        'copied without its .git')
    parser.add_argument('--out', type=Path, metavar='FILE',
                        help=f'JSON file [{RESULTS.relative_to(REPOSITORY)}/vit-cpu.json, '
                        f'vit-h200.json and so on; with --quick '
                        f'{QUICK_OUT.relative_to(REPOSITORY)}]')
    return parser


if __name__ == '__main__':
    sys.exit(main())
