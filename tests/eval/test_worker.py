"""A variant's process: with an engine that answers by file name, and once with LMDeploy itself."""
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lmdeploy_ext.classify import job
from lmdeploy_ext.classify.decode import Needs
from lmdeploy_ext.classify.engine import Answer, LoopThread
from lmdeploy_ext.classify.errors import EngineError
from lmdeploy_ext.classify.tokenizer import ModelTokenizer
from lmdeploy_ext.eval.dataset import LabelledSource
from lmdeploy_ext.eval.provenance import gpus
from lmdeploy_ext.eval.run_folder import LabelledImage, RunFolder, stored_records
from lmdeploy_ext.eval.settings import EvalSettings
from lmdeploy_ext.eval.worker import predict, recorded
from lmdeploy_ext.models.checkpoint import write_checkpoint


class BrightnessEngine:
    """Says 是 to bright images; fails for good after `fail_after` answers."""
    fail_after = None
    needs = Needs.PIXELS
    concurrency = 2

    def __init__(self, settings):
        tokenizer = ModelTokenizer(settings.model, settings.chat_template)
        self._yes, self._no = (tokenizer.answer_tokens(label)[0] for label in '是否')
        self._left = self.fail_after

    def __enter__(self):
        self.loop = LoopThread('fake')
        return self

    def __exit__(self, *exc_info):
        self.loop.close()

    async def answer(self, question):
        if self._left is not None:
            if self._left == 0:
                raise EngineError('the engine stopped')
            self._left -= 1
        share = np.asarray(question.picture.rgb).mean() / 255
        logprobs = {self._yes: math.log(share), self._no: math.log(1 - share)}
        return Answer('是' if share > .5 else '否', logprobs, 9, 1)

    def settings(self):
        return {'engine': 'fake'}

    def details(self):
        return {'concurrency': 2}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A run folder, its variant, images that are bright and dark in turn, and settings."""
    images = []
    for number in range(10):
        path = tmp_path / f'{number}.png'
        brightness = (200 if number % 2 else 50) + number
        Image.new('RGB', (32, 32), (brightness, ) * 3).save(path)
        images.append(LabelledImage(str(number), str(path), '否是'[number % 2], 'test'))
    (tmp_path / '4.png').write_bytes(b'no image')
    monkeypatch.setattr(job, 'PipelineEngine', BrightnessEngine)
    write_checkpoint(str(tmp_path / 'model'), 'tiny')
    settings = EvalSettings(model=str(tmp_path / 'model'), manifest='manifest.jsonl')
    folder = RunFolder(tmp_path / 'run')
    (folder.path / 'variants' / 'stock').mkdir(parents=True)
    return folder.variant('stock'), images, settings


def test_answers_and_their_times_are_stored(prepared):
    own, images, settings = prepared
    predict(own, 1, LabelledSource('x', tuple(images)), settings)
    outcomes = own.read_outcomes(images, 1)
    assert [outcome.answer for outcome in outcomes
            ] == [None if image.id == '4' else image.label for image in images]
    completions = own.read_completions(1)
    assert [completion.id for completion in completions] == [image.id for image in images]
    assert all(completion.finished >= completion.started for completion in completions)
    # an unreadable image is answered at once, which is no work
    assert [completion.id for completion in completions if not completion.computed] == ['4']
    assert own.read_engine()['concurrency'] == 2
    assert {'name', 'group', 'state', 'target', 'why'} <= set(own.read_process()['patches'][0])


@pytest.mark.parametrize('first, ending', [(False, '?'), (True, '?\n<IMAGE_TOKEN>')])
def test_the_layout_of_prompts_is_a_setting(prepared, monkeypatch, first, ending):
    own, images, settings = prepared
    asked, answer = [], BrightnessEngine.answer

    async def note(self, question):
        asked.append(question.prompt)
        return await answer(self, question)

    monkeypatch.setattr(BrightnessEngine, 'answer', note)
    settings = replace(settings, prompt='bed?', prompt_first=first)
    predict(own, 1, LabelledSource('x', tuple(images)), settings)
    assert set(asked) == {'bed' + ending}


def test_rows_before_a_failure_are_kept_and_the_next_session_goes_on(prepared, monkeypatch):
    own, images, settings = prepared
    source = LabelledSource('x', tuple(images))
    monkeypatch.setattr(BrightnessEngine, 'fail_after', 6)
    with pytest.raises(EngineError):
        predict(own, 1, source, settings)
    monkeypatch.setattr(BrightnessEngine, 'fail_after', None)
    first = len(own.read_outcomes(images, 1))
    assert 0 < first < 10
    predict(own, 1, source, settings)
    assert len(own.read_outcomes(images, 1)) == 10
    completions = own.read_completions(1)
    assert [completion.session for completion in completions] == \
        [(1, 0)] * first + [(1, 1)] * (10 - first)


def test_a_half_written_time_is_dropped(tmp_path):
    path = tmp_path / 'times.jsonl'
    path.write_text('{"id": "a", "session": 3}\n{"id": "b", "sess', encoding='utf-8')
    with recorded(path):
        pass
    assert stored_records(path) == [{'id': 'a', 'session': 3}]
    assert path.read_text(encoding='utf-8').endswith('}\n')


@pytest.mark.skipif(bool(gpus()), reason='stock means another thing with a GPU')
@pytest.mark.timeout(180)
def test_the_real_thing(tmp_path):
    """Stock and patched LMDeploy on random weights, and that with a prefix cache: equal answers,
    patches told apart."""
    rng = np.random.default_rng(0)
    write_checkpoint(str(tmp_path / 'model'), 'tiny')
    with open(tmp_path / 'manifest.jsonl', 'w', encoding='utf-8') as file:
        for number in range(12):
            pixels = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((96, 96)).save(tmp_path / f'{number}.png')
            file.write(json.dumps({'image': f'{number}.png', 'label': '是否'[number % 2]}) + '\n')
    command = [sys.executable, '-m', 'lmdeploy_ext.eval', 'run', '--quiet', '--model', 'model',
               '--manifest', 'manifest.jsonl', '--out', 'run', '--concurrency', '2',
               '--warmup', '1', '--variants', 'stock,patched,cached:prefix_caching=1']
    env = dict(os.environ, HF_MODULES_CACHE=str(tmp_path / 'cache'), OMP_NUM_THREADS='1')
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stock, patched, cached = RunFolder(tmp_path / 'run').read_report()['variants']
    assert stock['answers'] == patched['answers'] == cached['answers']
    assert [variant['engine']['prefix_caching'] for variant in (stock, patched, cached)] == [
        False, False, True]
    assert stock['throughput']['qpm'] > 0
    in_patched = {row['name']: row['state'] for row in patched['patches']}
    assert 'off' not in in_patched.values()
    for row in stock['patches']:
        beyond_stock = row['group'] in ('correctness', 'speed')
        assert row['state'] == ('off' if beyond_stock else in_patched[row['name']])
