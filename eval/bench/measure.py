"""The process that measures speed and pixels: `python -m lmdeploy_ext.eval.bench.measure`.

It is started by `images.py` with patches off, and writes `{"rows": […]}`, or `{"error": …}` where
it cannot measure.
"""
import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

import cv2
import torch
from tqdm import tqdm

from ..errors import EvalError
from ..provenance import usable_cores, write_json
from . import photographs
from .cores import cores_rows
from .folder import folder_rows
from .ours import ways
from .scope import FULL, QUICK, SHIPPED_NAME, Scope
from .speed import size_rows
from .stock import Stock


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code 0; what went wrong with the input stands in the file."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.bench.measure')
    parser.add_argument('out', type=Path)
    parser.add_argument('--photos', type=Path)
    parser.add_argument('--quick', action='store_true')
    arguments = parser.parse_args(argv)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    try:
        result = {'rows': measure(QUICK if arguments.quick else FULL, arguments.photos)}
    except EvalError as error:
        result = {'error': str(error)}
    write_json(arguments.out, result)
    return 0


def measure(scope: Scope, folder: Optional[Path]) -> List[Dict[str, Any]]:
    """The rows of the table, of all cores, and of photographs.

    Raises:
        EvalError: LMDeploy is patched here, or the photographs cannot be used.
    """
    everyone = (Stock(), *ways())
    # Photographs first: a folder that cannot be used ends the run before minutes have gone by.
    folders = {SHIPPED_NAME: photographs.shipped()}
    if folder is not None:
        folders = {folder.resolve().name: photographs.folder_files(folder), **folders}
    pictured = [row for name, files in folders.items()
                for row in folder_rows(everyone, files[:scope.photographs], name,
                                       scope.photograph_runs)]
    with tempfile.TemporaryDirectory(prefix='bench-images-') as scratch:
        return [*_table(everyone, scope, Path(scratch)),
                *_all_cores(everyone, scope, Path(scratch)), *pictured]


def _all_cores(everyone: Sequence[Any], scope: Scope, scratch: Path) -> List[Dict[str, Any]]:
    """The rows of all cores."""
    rows = []
    for width, height in _progress(scope.cores_sizes, 'all cores'):
        path = photographs.write_scene(scratch, width, height, 'JPEG')
        rows += cores_rows(everyone, path, f'{width}x{height} JPEG', usable_cores(),
                           scope.cores_seconds, scope.cores_rounds)
    return rows


def _table(everyone: Sequence[Any], scope: Scope, scratch: Path) -> List[Dict[str, Any]]:
    """The rows of all sizes and formats, on one thread."""
    rows = []
    cells = [(size, form) for size in scope.sizes for form in scope.formats]
    for (width, height), form in _progress(cells, 'sizes and formats'):
        path = photographs.write_scene(scratch, width, height, form)
        about = {
            'size': f'{width}x{height}',
            'width': width,
            'height': height,
            'format': form,
            'file_bytes': path.stat().st_size
        }
        rows += size_rows(everyone, path, about, scope.seconds, scope.least, scope.most)
    return rows


def _progress(items: Sequence[Any], what: str) -> Iterable[Any]:
    """The items, with a bar on a terminal."""
    return tqdm(items, desc=what, leave=False, disable=None)


if __name__ == '__main__':
    sys.exit(main())
