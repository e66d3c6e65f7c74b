"""TurboMind's outputs as they come, against upstream's loop that looks for them."""
import asyncio

import numpy as np
import pytest
from lmdeploy.messages import GenerationConfig, ResponseType
from lmdeploy.turbomind import turbomind as upstream

from tests.turbomind.stand_in import SESSION_LEN, StandInEngine
from tests.turbomind.test_streams import run

STOCK = upstream.TurboMindInstance.async_stream_infer.__wrapped__
OURS = upstream.TurboMindInstance.async_stream_infer
EOS, PROMPT = 2, [11, 12, 13]


class Scripted:
    """What the C++ class of the same place does with an answer that is known."""

    def __init__(self, answer):
        self.answer, self.callback, self.kept = answer, None, []

    def register_callback(self, callback):
        self.callback = callback

    def unregister_callback(self):
        self.callback = None

    def forward(self, tm_inputs, instance_comm=None):
        if isinstance(self.answer, Exception):
            raise self.answer
        for count in range(1, len(self.answer)):
            if self.callback:
                self.callback(self.outputs(count), None)
        return self.outputs(len(self.answer))

    def outputs(self, count):
        step = len(PROMPT)
        ids = np.zeros((1, 1, SESSION_LEN), np.int32)
        ids[0, 0, step:step + count] = self.answer[:count]
        indexes = np.tile(np.arange(3, dtype=np.int32), (1, 1, count, 1))
        indexes[0, 0, :, 0] = self.answer[:count]
        arrays = dict(
            output_ids=ids, sequence_length=np.array([[step + count]], np.int32),
            logprob_indexes=indexes,
            logprob_vals=-np.arange(3 * count, dtype=np.float32).reshape(1, 1, count, 3),
            logprob_nums=np.full((1, 1, count), 3, np.int32))
        self.kept.append(arrays)  # upstream's tensors do not own what numpy has allocated
        return upstream._np_dict_to_tm_dict(arrays)


class ScriptedEngine(StandInEngine):
    """Gives one answer to everybody."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def create_model_instance(self, *_):
        return Scripted(self.answer)


async def outputs(function, answer, stream=False, **options):
    options = {**dict(max_new_tokens=9, top_k=1), **options}
    found = []
    async for output in function(ScriptedEngine(answer).create_instance(), 1, PROMPT,
                                 sequence_start=True, sequence_end=True, stream_output=stream,
                                 gen_config=GenerationConfig(**options)):
        found.append(output)
    return found


ANSWERS = [[5], [5, 6, 7], [5, EOS], [EOS], [5, 6, 9], [9], [5, 9, 6], [9, EOS], []]
OPTIONS = [{}, dict(ignore_eos=True), dict(stop_token_ids=[9, 4]), dict(logprobs=2),
           dict(logprobs=3, stop_token_ids=[9], ignore_eos=True)]


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('answer', ANSWERS)
def test_the_answer_is_upstreams(answer, options):
    stock, ours = (run(outputs(function, answer, **options)) for function in (STOCK, OURS))
    assert ours == stock


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('answer', ANSWERS)
def test_a_stream_grows_to_it(answer, options):
    whole, = run(outputs(STOCK, answer, **options))
    found = run(outputs(OURS, answer, stream=True, **options))
    assert found[-1] == whole
    assert all(output.status == ResponseType.SUCCESS for output in found[:-1])
    for output in found:
        assert output.token_ids == answer[:len(output.token_ids)]
    counts = [output.num_token for output in found]
    assert counts[:-1] == sorted(set(counts[:-1]))


def test_nothing_is_looked_for(monkeypatch):
    async def no_sleep(*_):
        raise AssertionError('somebody polls')

    monkeypatch.setattr(asyncio, 'sleep', no_sleep)
    assert run(outputs(OURS, [5, 6, 7], stream=True))[-1].token_ids == [5, 6, 7]


def test_a_failure_of_the_engine_ends_the_stream():
    """Upstream's 0.6.0 waits for ever."""
    error = RuntimeError('an illegal memory access was encountered')
    if hasattr(ResponseType, 'INTERNAL_ENGINE_ERROR'):
        output, = run(outputs(OURS, error))
        assert output.status == ResponseType.INTERNAL_ENGINE_ERROR
    else:
        with pytest.raises(RuntimeError, match='illegal memory access'):
            run(outputs(OURS, error))


def test_a_part_that_comes_late_takes_nothing_away():
    from lmdeploy_ext.turbomind.answers import Arrivals

    async def test():
        for end in (True, -1):
            arrivals = Arrivals()
            for arrival in ((False, 1), (end, 2), (False, 1)):
                arrivals.put(arrival)
            assert await arrivals.newest() == (end, 2)

    run(test())


def test_outputs_for_a_loop_that_is_closed_harm_nobody():
    from lmdeploy_ext.turbomind.answers import Arrivals

    async def made():
        return Arrivals()

    arrivals = asyncio.run(made())
    arrivals.put((True, None))
