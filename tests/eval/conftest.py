"""A run folder as the predicting processes leave it, without any model."""
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from lmdeploy_ext.eval import runner
from lmdeploy_ext.eval.provenance import provenance, write_json
from lmdeploy_ext.eval.run_folder import LabelledImage, RunFolder

LABELS = ('是', '否')
SETTINGS = {
    'model': 'some/model',
    'manifest': 'manifest.jsonl',
    'prompt': '有床吗？',
    'labels': list(LABELS),
    'positive': '是',
    'target_recall': .95,
    'test_split': 'test',
    'calibration_split': 'calibration',
    'rounds': 1,
    'concurrency': 4,
    'warmup': 8,
}


def labelled_images(test=60, calibration=40):
    """Images of both splits, every other one positive."""
    splits = ['test'] * test + ['calibration'] * calibration
    return [
        LabelledImage(f'{split}/{number}.jpg', f'/images/{number}.jpg', LABELS[number % 2], split)
        for number, split in enumerate(splits)
    ]


def row(image, positive=None, error=None):
    """A stored row: the positive label's probability, or an error."""
    answered = error is None
    label = ('是' if positive >= .5 else '否') if answered else None
    return {
        'id': image.id,
        'path': image.path,
        'label': label,
        'probabilities': {
            '是': positive,
            '否': 1 - positive
        } if answered else None,
        'text': label if answered else None,
        'input_tokens': 900,
        'output_tokens': 1,
        'seconds': .5,
        'error': error,
    }


def write_lines(path, records):
    """A JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(record, ensure_ascii=False) + '\n' for record in records),
                    encoding='utf-8')


def write_rows(folder, variant, rows, number=1):
    """A variant's result file."""
    write_lines(folder.variant(variant).rows_file(number), [{'lmdeploy_ext': {}}, *rows])


def answer_all(folder, variant, images, number=1, seed=0, seconds_apart=.5, skill=2.5):
    """Rows and times of a variant that is right mostly; returns the positive probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal([skill if image.label == '是' else -skill for image in images], 2)
    probabilities = 1 / (1 + np.exp(-logits))
    finished = np.cumsum(rng.gamma(8, seconds_apart / 8, len(images))) + 5
    write_rows(folder, variant, map(row, images, probabilities.tolist()), number)
    write_lines(
        folder.variant(variant).times_file(number),
        [{
            'id': image.id,
            'session': 0,
            'started': float(end - rng.gamma(20, 4 * seconds_apart / 20)),
            'finished': float(end),
            'computed': True
        } for image, end in zip(images, finished)])
    return probabilities


@pytest.fixture
def empty_run(tmp_path):
    """A function that starts a run folder: `empty_run(images, variants, **settings)`."""

    def start(images, variants=('stock', 'patched'), **settings):
        folder = RunFolder(tmp_path / 'run')
        environments = {
            'stock': {
                'LMDEPLOY_EXT_PATCHES': 'cpu'
            },
            'patched': {
                'LMDEPLOY_EXT_PATCHES': 'all'
            }
        }
        folder.write_images(images)
        folder.write_run({
            'settings': {**SETTINGS, **settings},
            'variants': {name: environments.get(name, {}) for name in variants},
            'provenance': provenance(),
            'resumed': []
        })
        return folder

    return start


PATCHES = (
    ('engine_cpu', 'cpu', 'lmdeploy.pytorch.engine.engine:Engine.__init__', 'No CPU engine.'),
    ('tiles_native', 'speed', 'lmdeploy.vl.model.internvl:dynamic_preprocess', 'Too many tiles.'),
)


@pytest.fixture
def finished_run(empty_run):
    """A run of stock and patched, both complete, both with patches and versions."""
    images = labelled_images()
    folder = empty_run(images)
    for number, name in enumerate(('stock', 'patched')):
        answer_all(folder, name, images, seed=number, seconds_apart=.5 / (number + 1))
        patches = [{'name': patch, 'group': group, 'target': target, 'why': why,
                    'state': 'off' if name == 'stock' and group == 'speed' else 'applied'}
                   for patch, group, target, why in PATCHES]
        versions = {'python': '3.11.7', 'lmdeploy': '0.6.0', 'torch': '2.3.1'}
        write_json(folder.variant(name).process_file, {'versions': versions, 'patches': patches})
    return folder


FAKE_WORKER = Path(__file__).with_name('fake_worker.py')


@pytest.fixture
def fake_worker(monkeypatch):
    """Variants are answered by fake_worker.py."""
    monkeypatch.setenv('PYTHONPATH', str(Path(__file__).parents[2]))
    monkeypatch.setattr(runner, 'worker_command', lambda folder, variant, number: [
        sys.executable, str(FAKE_WORKER), str(folder.path), variant.name, str(number)])


FAKE_ENGINE = Path(__file__).with_name('fake_engine.py')


@pytest.fixture
def fake_engine(monkeypatch):
    """Engines are `fake_engine.py`."""
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(sys.path))
    monkeypatch.setattr('lmdeploy_ext.eval.bench.prefix_process.engine_command',
                        lambda: [sys.executable, str(FAKE_ENGINE)])
