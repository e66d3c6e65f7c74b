"""`make bench-images`: stock LMDeploy's image preprocessing against ours, in one run.

    python -m lmdeploy_ext.eval.bench.images [--photos FOLDER] [--quick] [--out FILE.json]

Both begin with a file and end with what is copied to the device: stock's normalised float16
tensor, our uint8 tiles (the GPU normalises them). Beside the JSON file it writes the table (.md)
and a picture (.png).
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

from ..errors import EvalError
from ..provenance import REPOSITORY, write_result
from . import photographs
from .children import stock_environment
from .files import write_beside
from .image_plot import draw
from .image_table import summary, table
from .memory import memory_rows
from .scope import FULL, OURS, QUICK, STOCK, Scope
from .targets import targets

OUT = REPOSITORY / 'eval' / 'results' / 'images.json'
QUICK_OUT = REPOSITORY / 'eval' / 'runs' / 'bench-images-quick.json'
SMALL = (64, 48)
INTERRUPTED = 130


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code: 0 measured (targets may be missed: the table says so), 2 wrong input, 130
    interrupted."""
    arguments = _parser().parse_args(argv)
    out = arguments.out or (QUICK_OUT if arguments.quick else OUT)
    try:
        if arguments.photos:
            photographs.folder_files(arguments.photos)
        photographs.shipped()
        result = run(arguments.photos, arguments.quick)
    except EvalError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; nothing was written', file=sys.stderr)
        return INTERRUPTED
    write_result(out, command=_typed(arguments.photos, arguments.quick), **result)
    write_beside(out, table, draw, summary)
    return 0


def run(photos: Optional[Path], quick: bool) -> Dict[str, Any]:
    """Measure; returns the result's `rows` and `targets`.

    Raises:
        EvalError: a process that measures failed.
    """
    scope = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix='bench-images-') as scratch:
        rows = _speed_rows(Path(scratch), photos, quick)
        rows += _memory_rows(Path(scratch), scope)
    return {'rows': rows, 'targets': targets(rows)}


def _speed_rows(scratch: Path, photos: Optional[Path], quick: bool) -> List[Dict[str, Any]]:
    """What `measure.py` measures in a process without patches."""
    out = scratch / 'rows.json'
    options = [*(['--photos', str(photos)] if photos else []), *(['--quick'] if quick else [])]
    done = subprocess.run([sys.executable, '-m', f'{__package__}.measure', str(out), *options],
                          env=stock_environment(), check=False)
    if done.returncode:
        raise EvalError(f'the process that measures ended with exit code {done.returncode}; what '
                        f'it printed is above')
    result = json.loads(out.read_text(encoding='utf-8'))
    if 'error' in result:
        raise EvalError(result['error'])
    return result['rows']


def _memory_rows(scratch: Path, scope: Scope) -> List[Dict[str, Any]]:
    """Peak memory of each way for the scope's images."""
    small = photographs.write_scene(scratch, *SMALL, 'JPEG')
    files = [{
        'path': photographs.write_scene(scratch, width, height, form),
        'image': f'{width}x{height} {form}',
        'width': width,
        'height': height
    } for width, height, form in scope.memory]
    return memory_rows(small, files, (STOCK, *OURS))


def _typed(photos: Optional[Path], quick: bool) -> List[str]:
    """The command, with the folder of photographs by its name alone: where it lies is of no use
    to others."""
    return ['python', '-m', f'{__package__}.images',
            *(['--photos', photos.resolve().name] if photos else []),
            *(['--quick'] if quick else [])]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.bench.images',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--photos', type=Path, metavar='FOLDER',
                        help='photographs of your own, measured beside those that scikit-image '
                        'ships')
    parser.add_argument('--quick', action='store_true',
                        help='a few files, a few times: seconds, and figures to ignore')
    parser.add_argument('--out', type=Path, metavar='FILE',
                        help=f'JSON file [{OUT.relative_to(REPOSITORY)}; with --quick '
                        f'{QUICK_OUT.relative_to(REPOSITORY)}]')
    return parser


if __name__ == '__main__':
    sys.exit(main())
