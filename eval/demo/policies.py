"""What tile policies cost the demo model: the plain fp32 reference over the settings of `native`,
beside stock at several `max_dynamic_patch`.

    python -m lmdeploy_ext.eval.demo.policies --split calibration --count 2000 --device cuda \
        --json policies.json --markdown policies.md

Each picture is drawn and decoded once, and settings that cut it alike share an answer. Choose on
the calibration split; the test split is for the figures of what was chosen. LMDeploy is not
needed.
"""
import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Iterator, Sequence

import cv2
import numpy as np
import torch
from tqdm import tqdm

from ...vl.tile_policy import TileModel
from ..provenance import provenance, write_json
from . import picture, questions
from .check import MODEL, digest
from .policy_settings import (FITS, MAX_SHRINK, STOCK_CAPS, THUMBNAIL_FROM, Setting,
                              native_settings, stock_settings, tilings)
from .policy_table import markdown, setting_figures
from .reference import Reference, ahead, from_bytes, normalised

BATCH_TILES = {'cpu': 16, 'cuda': 512}  # tiles in a batch, at most


@dataclass(frozen=True)
class Answers:
    """What was answered.

    Attributes:
        rows: of the manifest, one a picture.
        tiles: int `[settings, pictures]`, thumbnails included.
        probabilities: float32 `[settings, pictures]` of the positive answer.
    """
    rows: list[dict]
    tiles: np.ndarray
    probabilities: np.ndarray


class Queue:
    """Collects tilings, and answers as many of one length at a time as fill a batch."""

    def __init__(self, reference: Reference, batch_tiles: int):
        self._reference, self._batch_tiles = reference, batch_tiles
        self._waiting: dict[int, list[tuple[int, np.ndarray]]] = {}
        self._answers: list[float] = []

    def add(self, tiles: np.ndarray) -> int:
        """Put in uint8 `[tiles, side, side, 3]`; returns its place in `answers()`."""
        place = len(self._answers)
        self._answers.append(float('nan'))
        waiting = self._waiting.setdefault(len(tiles), [])
        waiting.append((place, tiles))
        if (len(waiting) + 1) * len(tiles) > self._batch_tiles:
            self._answer(len(tiles))
        return place

    def answers(self) -> np.ndarray:
        """The positive probabilities of everything put in, float32."""
        for count in list(self._waiting):
            self._answer(count)
        return np.array(self._answers, np.float32)

    def _answer(self, count: int) -> None:
        places, tiles = zip(*self._waiting.pop(count))
        pixels = torch.from_numpy(np.stack(tiles)).to(self._reference.model.device)
        found = self._reference.batch_probabilities(normalised(pixels))
        for place, probability in zip(places, found.tolist()):
            self._answers[place] = probability


def answer(reference: Reference, settings: Sequence[Setting],
           pictures: Iterator[picture.Picture], split: str, batch_tiles: int,
           threads: int) -> Answers:
    """Answer the published question about every picture under every setting; `threads` cut tiles
    meanwhile."""
    model = TileModel.from_config(reference.model.config)

    def prepare(drawn: picture.Picture):
        image = np.asarray(from_bytes(drawn.jpeg).convert('RGB'))
        return drawn.row(split), tilings(image, settings, model)

    queue, rows, places, tiles = Queue(reference, batch_tiles), [], [], []
    with ThreadPoolExecutor(threads) as pool:
        for row, cut in ahead(pool, prepare, pictures, 2 * threads):
            rows.append(row)
            added = [queue.add(tiling) for tiling in cut.tiles]
            places.append([added[index] for index in cut.of_setting])
            tiles.append([len(cut.tiles[index]) for index in cut.of_setting])
    return Answers(rows, np.array(tiles).T, queue.answers()[np.array(places).T])


def compare(reference: Reference, settings: Sequence[Setting], args: argparse.Namespace) -> dict:
    """Draw the pictures, answer, and make the record."""
    cv2.setNumThreads(1)  # the threads that cut are the parallelism
    with ProcessPoolExecutor(args.jobs, mp_context=get_context('spawn')) as pool:
        drawn = pool.map(partial(picture.draw, args.split, args.seed), range(args.count),
                         chunksize=8)
        shown = tqdm(drawn, total=args.count, unit='image', disable=not sys.stderr.isatty())
        batch_tiles = args.batch_tiles or BATCH_TILES[args.device]
        answers = answer(reference, settings, shown, args.split, batch_tiles, args.jobs)
    truth = np.array([row['label'] == questions.POSITIVE for row in answers.rows])
    figures = setting_figures([setting.name for setting in settings], truth, answers.tiles,
                              answers.probabilities)
    names = ('id', 'label', 'width', 'height', 'sort')
    return {
        **provenance(), 'device': args.device, 'split': args.split, 'count': args.count,
        'seed': args.seed, 'set_version': picture.VERSION,
        'weights_sha256': digest(args.model / 'model.safetensors'),
        'rows': [{**asdict(row), 'setting': asdict(setting)}
                 for row, setting in zip(figures, settings)],
        'pictures': [{**{name: row[name] for name in names},
                      'tiles': tiles, 'probabilities': [round(p, 6) for p in probabilities]}
                     for row, tiles, probabilities in zip(answers.rows, answers.tiles.T.tolist(),
                                                          answers.probabilities.T.tolist())]
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.policies',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--split', choices=list(picture.SPLITS), default='calibration')
    add('--count', type=int, default=200, help='pictures to draw [%(default)s]')
    add('--seed', type=int, default=0)
    add('--model', type=Path, default=MODEL, help='checkpoint folder')
    add('--device', choices=list(BATCH_TILES), default='cpu')
    add('--jobs', type=int, default=len(os.sched_getaffinity(0)),
        help='processes that draw, and threads that cut [%(default)s]')
    add('--batch-tiles', type=int, help=f'tiles in a batch at most {BATCH_TILES}')
    add('--max-shrink', type=float, nargs='+', default=MAX_SHRINK, metavar='X')
    add('--fit', choices=FITS, nargs='+', default=FITS)
    add('--thumbnail-from', type=int, nargs='+', default=THUMBNAIL_FROM, metavar='TILES')
    add('--stock', type=int, nargs='+', default=STOCK_CAPS, metavar='TILES',
        help='values of max_dynamic_patch')
    add('--json', type=Path, metavar='FILE', help='all figures, and every probability')
    add('--markdown', type=Path, metavar='FILE', help='the table [printed]')
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with one line where an argument cannot be used."""
    if not (args.model / 'config.json').is_file():
        parser.error(
            f'{args.model} has no config.json; give the folder of a checkpoint with --model')
    counts = [args.count, args.jobs, *args.stock]
    if min(counts) < 1 or args.batch_tiles is not None and args.batch_tiles < 1:
        parser.error('--count, --jobs, --batch-tiles and --stock must be at least 1')
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda, but torch finds no GPU; use --device cpu')


def main(argv=None) -> int:
    """Command line."""
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its products may be of lower precision
    if args.device == 'cpu':
        torch.set_num_threads(args.jobs)
    try:
        settings = stock_settings(args.stock) + native_settings(args.max_shrink, args.fit,
                                                                args.thumbnail_from)
    except ValueError as error:
        parser.error(str(error))
    record = compare(Reference.load(args.model, args.device), settings, args)
    table = markdown(record)
    if args.json:
        write_json(args.json, record)
    if args.markdown:
        args.markdown.write_text(table, encoding='utf-8')
    else:
        sys.stdout.write(table)
    return 0


if __name__ == '__main__':
    sys.exit(main())
