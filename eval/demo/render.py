"""Write a split of the demo set: JPEG files and a manifest.

    python -m lmdeploy_ext.eval.demo.render --out DIR --split test --count 300 --seed 0 --jobs 2

Picture i depends on seed, split and i only. Doing it again costs next to nothing; with a higher
count, what is there is kept. Several splits may go to one folder.
"""
import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Iterator, Optional, Sequence

import cv2
import numpy as np
from tqdm import tqdm

from .picture import SPLITS, VERSION, draw

IDENTITY = 'set.json'
MANIFEST = 'manifest.jsonl'
IMAGES = 'images'


class RenderError(ValueError):
    """The folder cannot take this set; the message is one line."""


def identity(seed: int) -> dict:
    """What pictures depend on besides split and index; a folder holds pictures of one identity.

    NumPy's generator and OpenCV's drawing and JPEG encoder differ between their releases.
    """
    return {'version': VERSION, 'seed': seed, 'numpy': np.__version__, 'opencv': cv2.__version__}


def render_split(out: Path,
                 split: str,
                 count: int,
                 seed: int = 0,
                 jobs: int = 1,
                 progress: bool = False) -> Path:
    """Draw pictures 0 to `count` of a split that are not there yet; returns the manifest.

    Raises:
        RenderError: the folder holds something else, or pictures of another identity.
    """
    _claim(out, identity(seed))
    rows = _read_rows(out)
    missing = [index for index in range(count) if f'{split}-{index:06d}' not in rows]
    (out / IMAGES).mkdir(exist_ok=True)
    with open(out / MANIFEST, 'a', encoding='utf-8') as manifest:
        for row in tqdm(_draw_all(out, split, seed, missing, jobs),
                        total=len(missing),
                        desc=split,
                        unit='image',
                        disable=not progress or not missing):
            manifest.write(json.dumps(row, ensure_ascii=False) + '\n')
            rows[row['id']] = row
    _write_manifest(out, rows)
    return out / MANIFEST


def _claim(out: Path, wanted: dict) -> None:
    """Make the folder, or check that it holds pictures of the same identity."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RenderError(
            f'{out} cannot be made ({error.strerror}); give another --out') from error
    file = out / IDENTITY
    if file.is_file():
        found = json.loads(file.read_text(encoding='utf-8'))
        differing = [name for name in wanted if found.get(name) != wanted[name]]
        if differing:
            name = differing[0]
            raise RenderError(f'{out} holds pictures of {name} {found.get(name)}, not '
                              f'{wanted[name]}; give another --out, or delete the folder')
    elif any(out.iterdir()):
        raise RenderError(f'{out} holds other files; give an empty or a new folder as --out')
    else:
        file.write_text(json.dumps(wanted) + '\n', encoding='utf-8')


def _read_rows(out: Path) -> dict[str, dict]:
    """Rows of pictures that are there; a last line cut off by an interruption is left out."""
    rows, file = {}, out / MANIFEST
    if file.is_file():
        for line in file.read_text(encoding='utf-8').splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if (out / row['image']).is_file():
                rows[row['id']] = row
    _write_manifest(out, rows)
    return rows


def _write_manifest(out: Path, rows: dict[str, dict]) -> None:
    """Write all rows in order of their ids, at once."""
    part = out / (MANIFEST + '.part')
    lines = (json.dumps(rows[name], ensure_ascii=False) + '\n' for name in sorted(rows))
    part.write_text(''.join(lines), encoding='utf-8')
    os.replace(part, out / MANIFEST)


def _draw_all(out: Path, split: str, seed: int, indices: Sequence[int],
              jobs: int) -> Iterator[dict]:
    work = partial(_draw_to, out, split, seed)
    if jobs == 1 or len(indices) < 8:
        yield from map(work, indices)
        return
    with ProcessPoolExecutor(jobs, get_context('spawn'), cv2.setNumThreads, (1, )) as pool:
        yield from pool.map(work, indices, chunksize=4)


def _draw_to(out: Path, split: str, seed: int, index: int) -> dict:
    """Draw one picture to its file, which is there whole or not at all."""
    picture = draw(split, seed, index)
    row = picture.row(split)
    part = out / IMAGES / f'{picture.id}.part'
    part.write_bytes(picture.jpeg)
    os.replace(part, out / row['image'])
    return row


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line; 2 where the folder or an argument cannot be used."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.render',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', type=Path, required=True, metavar='DIR')
    parser.add_argument('--split', choices=list(SPLITS), default='test')
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--jobs',
                        type=int,
                        default=len(os.sched_getaffinity(0)),
                        help='processes; default: the cores this process may use')
    args = parser.parse_args(argv)
    if min(args.count, args.jobs) < 1 or args.seed < 0:
        parser.error('--count and --jobs must be at least 1, --seed at least 0')
    try:
        render_split(args.out, args.split, args.count, args.seed, args.jobs, sys.stderr.isatty())
    except RenderError as error:
        parser.error(str(error))
    return 0


if __name__ == '__main__':
    sys.exit(main())
