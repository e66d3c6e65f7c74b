"""An engine of `make bench-prefix`, its process, and what it is asked."""
import asyncio
import os
from copy import deepcopy
from dataclasses import asdict
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from lmdeploy_ext.classify.errors import ImageError
from lmdeploy_ext.eval.bench.prefix_client import Client
from lmdeploy_ext.eval.bench.prefix_engine import backend_config
from lmdeploy_ext.eval.bench.prefix_figures import FigureTaker
from lmdeploy_ext.eval.bench.prefix_material import jpeg, text
from lmdeploy_ext.eval.bench.prefix_process import (EngineFailed, EngineProcess, EngineSettings,
                                                    Measure)
from lmdeploy_ext.eval.bench.prefix_scope import FULL, QUICK
from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.vision.features import Features


@pytest.fixture
def engine(tmp_path, fake_engine):
    """A process that measures nothing, with the cache on."""
    settings = EngineSettings('model', 'pytorch', 'cpu', caching=True, scope=QUICK['cpu'])
    engine = EngineProcess(settings, tmp_path / 'log', limit=60)
    yield engine
    engine.close()


def test_a_dead_engine_is_started_again(engine, monkeypatch):
    monkeypatch.setenv('FAKE_DIES', 'on unique')
    with pytest.raises(EngineFailed):
        engine.ask(Measure('unique', 0))
    assert engine.ask(Measure('questions', 0))['requests'] == 8
    engine.close()
    engine.close()  # costs nothing


def test_an_engine_that_does_not_answer_is_ended(engine, monkeypatch):
    monkeypatch.setenv('FAKE_HANGS', 'on unique')
    pid = engine.start()['pid']
    engine.limit = 0.1
    with pytest.raises(EngineFailed, match='no answer within 0.1 s, so the process was ended'):
        engine.ask(Measure('unique', 0))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    engine.limit = 60
    assert engine.ask(Measure('questions', 0))['requests'] == 8


@pytest.mark.parametrize('backend, name, blocks', [
    ('turbomind', 'cache_max_entry_count', 4096), ('pytorch', 'num_gpu_blocks', 4096)])
def test_both_engines_have_a_cache_of_the_same_size(backend, name, blocks):
    off, on = (backend_config(EngineSettings('model', backend, 'cuda', caching, FULL['cuda']))
               for caching in (False, True))
    assert getattr(off, name) == getattr(on, name) == blocks
    # what upstream makes of it before it goes to C++
    assert asdict(deepcopy(on))[name] == blocks
    assert (off.enable_prefix_caching, on.enable_prefix_caching) == (False, True)


class FakePipe:
    """What `lmdeploy.pipeline` gives, of TurboMind. Answers one token to a text, and fails for
    the text `fail`."""
    backend, instance_num = 'turbomind', 3

    def __init__(self, virtual_tokens=None, service=None):
        self.engine = SimpleNamespace(virtual_tokens=virtual_tokens)
        self.vl_encoder = SimpleNamespace(service=service)
        self.running = self.most_running = self.cancelled = 0

    async def generate(self, messages, session, gen_config):
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(0)
            if messages == 'fail':
                yield SimpleNamespace(finish_reason='error', generate_token_len=0,
                                      input_token_len=5)
                return
            while messages == 'endless':
                await asyncio.sleep(1)
            yield SimpleNamespace(finish_reason='length', generate_token_len=1, input_token_len=5)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


def test_no_more_requests_are_sent_than_the_engine_takes():
    pipe = FakePipe()
    answers = asyncio.run(Client(pipe).ask_all(['text'] * 10, concurrency=8))
    assert [answer.input_tokens for answer in answers] == [5] * 10
    assert all(answer.first > 0 for answer in answers)
    assert pipe.most_running == 3


def test_a_request_that_fails_ends_the_others():
    pipe = FakePipe()
    with pytest.raises(ImageError, match='internal error'):
        asyncio.run(Client(pipe).ask_all(['endless', 'fail', 'endless'], concurrency=3))
    assert (pipe.running, pipe.cancelled) == (0, 2)


def test_features_are_counted_where_the_engine_gets_them():
    async def async_infer(inputs, params):
        return [Features(torch.zeros(2, 4)) for _ in inputs]

    service = SimpleNamespace(async_infer=async_infer)
    pipe = FakePipe(SimpleNamespace(figures=lambda: SimpleNamespace(virtual=7)), service)
    taker = FigureTaker(pipe)
    before = taker.now()
    pipe.engine.virtual_tokens.figures = lambda: SimpleNamespace(virtual=9)
    assert len(asyncio.run(pipe.vl_encoder.async_infer(['a', 'b', 'c'], None))) == 3
    assert taker.since(before) == {'images': 3, 'images_on_gpu': 0, 'virtual': 2,
                                   'prompt_tokens': None, 'cached_tokens': None}
    assert FigureTaker(FakePipe(None, service)).now().virtual == 0


def test_a_model_without_our_vision_service_is_refused():
    with pytest.raises(EvalError, match='unset LMDEPLOY_EXT_VISION, or choose another --model'):
        FigureTaker(FakePipe())


def test_images_are_new_for_each_seed_and_the_same_for_one():
    pictures = [jpeg([1, number], (480, 320)) for number in range(40)]
    assert len(set(pictures)) == 40
    assert pictures[0] == jpeg([1, 0], (480, 320))
    pixels = [cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
              for picture in pictures[:2]]
    assert pixels[0].shape == (320, 480, 3)
    assert np.abs(pixels[0].astype(int) - pixels[1]).mean() > 20


def test_texts_are_as_long_as_asked_and_differ_from_the_start():
    def count(words):
        return len(words.split())

    texts = [text([0, number], 67, count) for number in range(8)]
    assert [count(each) for each in texts] == [67] * 8
    assert len({each[:40] for each in texts}) == 8
    assert texts[0] == text([0, 0], 67, count)
    assert len(text([0], 1000, len)) in range(1000, 1010)
