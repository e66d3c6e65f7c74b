"""Figures of the demo model without LMDeploy's engine: the plain fp32 reference on freshly drawn
pictures.

    python -m lmdeploy_ext.eval.demo.check --split test --count 2000 [--max-dynamic-patch 1]

Preprocessing is LMDeploy's own; what is printed is what the model itself can do with stock tiles.
"""
import argparse
import hashlib
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ..metrics import BinaryMetrics, binary_metrics
from ..provenance import provenance
from . import picture, questions
from .reference import Reference, from_bytes

MODEL = Path(__file__).parent / 'model'


def figures(rows: list[dict], threshold: float = 0.5) -> dict[str, BinaryMetrics]:
    """Recall and precision of all rows, and of the rows of each size and sort of room."""
    parts = {'all': rows}
    for row in rows:
        long, short = sorted((row['width'], row['height']), reverse=True)
        parts.setdefault(f'{long}x{short}', []).append(row)
        parts.setdefault(row['sort'], []).append(row)
    return {
        name:
        binary_metrics(np.array([row['label'] == questions.POSITIVE for row in part]),
                       np.array([row['probability'] for row in part]), threshold)
        for name, part in parts.items()
    }


def predict(reference: Reference, split: str, count: int, seed: int, max_num: int,
            jobs: int) -> list[dict]:
    """Draw pictures 0 to `count` of a split and answer the published question; manifest rows with
    `probability`."""
    rows = []
    with ProcessPoolExecutor(jobs, mp_context=get_context('spawn')) as pool:
        pictures = pool.map(partial(picture.draw, split, seed), range(count), chunksize=8)
        answers = reference.probabilities(pictures, lambda drawn: from_bytes(drawn.jpeg), max_num,
                                          jobs)
        for drawn, probability in tqdm(answers,
                                       total=count,
                                       unit='image',
                                       disable=not sys.stderr.isatty()):
            rows.append({**drawn.row(split), 'probability': probability})
    return rows


def table(parts: dict[str, BinaryMetrics]) -> str:
    """Figures in percent, one line a part."""
    lines = [f'{"":10} {"images":>6} {"recall %":>22} {"precision %":>22}']
    for name, metrics in parts.items():
        images = metrics.accuracy.total
        recall, precision = _percent(metrics.recall), _percent(metrics.precision)
        lines.append(f'{name:10} {images:6} {recall:>22} {precision:>22}')
    return '\n'.join(lines)


def _percent(estimate) -> str:
    if estimate.value is None:
        return 'none'
    return f'{100 * estimate.value:.1f} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})'


def digest(file: Path) -> str:
    """The sha256 of a file, in hex digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(argv=None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.check',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--split', choices=list(picture.SPLITS), default='test')
    parser.add_argument('--count', type=int, default=200, help='pictures to draw and answer')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--max-dynamic-patch', type=int, default=12, metavar='TILES')
    parser.add_argument('--model', type=Path, default=MODEL, help='checkpoint folder')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--jobs',
                        type=int,
                        default=len(os.sched_getaffinity(0)),
                        help='processes that draw')
    parser.add_argument('--json', type=Path, help='write the figures here too, for card.py')
    args = parser.parse_args(argv)
    if not (args.model / 'config.json').is_file():
        parser.error(
            f'{args.model} has no config.json; give the folder of a checkpoint with --model')
    if min(args.count, args.max_dynamic_patch, args.jobs) < 1:
        parser.error('--count, --max-dynamic-patch and --jobs must be at least 1')
    if args.device == 'cpu':
        torch.set_num_threads(args.jobs)
    reference = Reference.load(args.model, args.device)
    parts = figures(
        predict(reference, args.split, args.count, args.seed, args.max_dynamic_patch, args.jobs))
    sys.stdout.write(table(parts) + '\n')
    if args.json:
        record = {
            **provenance(), 'split': args.split,
            'count': args.count,
            'seed': args.seed,
            'set_version': picture.VERSION,
            'max_dynamic_patch': args.max_dynamic_patch,
            'weights_sha256': digest(args.model / 'model.safetensors'),
            'figures': {
                name: asdict(metrics)
                for name, metrics in parts.items()
            }
        }
        args.json.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
