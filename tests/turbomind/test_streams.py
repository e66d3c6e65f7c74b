"""Upstream's streams with virtual tokens, over a stand-in for TurboMind's C++: each answer is the
stock path's, whatever else happens; nothing is left behind."""
import asyncio
import random
from contextlib import aclosing
from weakref import WeakKeyDictionary

import pytest
import torch
from lmdeploy.messages import GenerationConfig

from tests.turbomind.stand_in import HIDDEN, StandInEngine

LENGTHS = [16, 16, 32, 48, 16, 5, 21, 64, 33, 16]
RNG = torch.Generator().manual_seed(0)
IMAGES = [torch.randn(length, HIDDEN, generator=RNG).half() for length in LENGTHS]
for number, image in enumerate(IMAGES):
    image.feature_key = b'%d' % number


def prompt_of(before, images, after=3):
    ids, ranges = list(range(10, 10 + before)), []
    for number in images:
        ranges.append([len(ids), len(ids) + LENGTHS[number]])
        ids += [0] * LENGTHS[number] + [7]
    return dict(input_ids=ids + list(range(300, 300 + after)),
                input_embeddings=[IMAGES[number] for number in images] or None,
                input_embedding_ranges=ranges or None)


def config(**options):
    return GenerationConfig(**{**dict(max_new_tokens=4, top_k=1, temperature=1.0, ignore_eos=True),
                               **options})


class Client:
    """Sends requests, each in an instance of its own."""

    def __init__(self, engine):
        self.engine, self.session = engine, 0

    async def outputs(self, before, images, after=3, gen_config=None, **options):
        self.session += 1
        options = {**dict(sequence_start=True, sequence_end=True, stream_output=False), **options}
        stream = self.engine.create_instance().async_stream_infer(
            options.pop('session', self.session), **prompt_of(before, images, after),
            gen_config=gen_config or config(), **options)
        async with aclosing(stream) as outputs:
            async for output in outputs:
                yield output

    async def answer(self, *args, **options):
        answers = [output.token_ids async for output in self.outputs(*args, **options)]
        assert options.get('stream_output') or len(answers) == 1
        return answers[-1]


def run(test):
    return asyncio.run(asyncio.wait_for(test, 60))


async def until(condition):
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError('not within 5 s')


async def all_ended(engine):
    """The engine's threads have ended, and what they call at the end was called."""

    def ended():
        figures = engine.virtual_tokens.figures().queue
        return not (engine.running or figures.rows.rows_in_use or figures.waiting
                    or engine.load.never_preempted())

    await until(ended)


STOCK = WeakKeyDictionary()


def stock_answer(engine, before, images, after=3):
    """Of an engine without virtual tokens and the same table."""
    answers, key = STOCK.setdefault(engine, {}), (before, tuple(images), after)
    if key not in answers:
        stock = StandInEngine(seconds=0)
        stock.memory[:500] = engine.memory[:500]
        answers[key] = run(Client(stock).answer(before, images, after))
    return answers[key]


def a_prompt(rng):
    return (rng.choice([0, 1, 47, 48, 60, 63, 64, 65, 120]),
            [rng.randrange(len(IMAGES)) for _ in range(rng.choice([1, 1, 1, 2, 3]))],
            rng.randrange(1, 40))


@pytest.mark.parametrize('seed', range(3))
def test_hundreds_of_requests_are_answered_as_on_the_stock_path(seed):
    """Some are streams, some cancelled, some have a penalty, some have no image; KV blocks are few
    enough that some are evicted."""
    rng = random.Random(seed)
    engine = StandInEngine(slots=14, blocks=160, seconds=0.001)
    prompts = [a_prompt(rng) for _ in range(120)]
    expected = [stock_answer(engine, *prompt) for prompt in prompts]
    wrong = []

    async def test():
        client, places = Client(engine), asyncio.Semaphore(6)

        async def one(prompt, want, kind):
            async with places:
                options = dict(gen_config=config(repetition_penalty=1.2)) if kind == 0 else {}
                got = await client.answer(*prompt, stream_output=kind == 1, **options)
                if got != want:
                    wrong.append((prompt, got, want))

        tasks = [asyncio.ensure_future(one(prompt, want, rng.randrange(9)))
                 for prompt, want in zip(prompts, expected)]
        for task in rng.sample(tasks, 20):
            await asyncio.sleep(rng.random() / 30)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        failures = [task.exception() for task in tasks if not task.cancelled()]
        assert not any(failures)
        await all_ended(engine)

    run(test())
    figures = engine.virtual_tokens.figures()
    assert not wrong and not engine.problems
    assert figures.virtual > 30 and figures.queue.rows.reuses > 0 and figures.stock > 0


def test_the_same_image_is_computed_once_however_many_ask():
    engine = StandInEngine(slots=8)

    async def test():
        client = Client(engine)
        return await asyncio.gather(*[client.answer(70, [7], after) for after in range(1, 9)])

    answers = run(test())
    assert answers == [stock_answer(engine, 70, [7], after) for after in range(1, 9)]
    figures = engine.virtual_tokens.figures()
    assert figures.queue.rows.loads == 1 and figures.queue.rows.hit_images == 7
    assert figures.prefix_waits == 7
    assert engine.model.matched_tokens == 7 * 128


@pytest.mark.parametrize('blocks', [400, 10])
def test_different_images_after_the_same_text_run_together(blocks):
    """Also while they are more than the KV blocks hold, so that nothing is sure to stay there that
    nobody uses."""
    engine = StandInEngine(slots=30, blocks=blocks, seconds=0.03)
    engine.model.limit = 400

    async def test():
        client, peak = Client(engine), []
        tasks = [asyncio.ensure_future(client.answer(400, [number], after))
                 for number in range(10) for after in (1, 2)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.002)
            peak.append(len(engine.running))
        await asyncio.gather(*tasks)
        return max(peak)

    assert run(test()) > 5


def test_without_keys_only_text_is_reused():
    engine = StandInEngine(slots=8, keyed=False)

    async def test():
        return [await Client(engine).answer(64, [7]) for _ in range(2)]

    assert run(test()) == 2 * [stock_answer(engine, 64, [7])]
    assert engine.model.matched_tokens == 64
    assert engine.virtual_tokens.figures().queue.rows.loads == 2


def test_a_caller_that_asked_for_no_stream_gets_one_output():
    engine = StandInEngine(slots=8)

    async def test():
        return [output async for output in Client(engine).outputs(0, [0])]

    outputs = run(test())
    assert len(outputs) == 1 and outputs[0].num_token == 4


def test_rows_stay_while_the_engine_runs_whatever_the_caller_does():
    """The caller goes away without a word; the engine generates to the end."""
    engine = StandInEngine(slots=1, seconds=0.1)

    async def test():
        client = Client(engine)
        outputs = client.outputs(0, [0], stream_output=True)
        await outputs.__anext__()
        await outputs.aclose()
        assert engine.running
        assert engine.virtual_tokens.figures().queue.rows.rows_in_use == 16
        await all_ended(engine)

    run(test())


def test_an_image_whose_first_request_is_stopped_early_gets_other_ids():
    """The trie has blocks of it that were never computed, and the instance's buffers an answer of
    an earlier request."""
    engine = StandInEngine(slots=20, seconds=0.05)
    instance = engine.create_instance()

    async def ask(session, before, images):
        return [output async for output in instance.async_stream_infer(
            session, **prompt_of(before, images), gen_config=config(), sequence_end=True)]

    async def test():
        await ask(1, 120, [1, 2, 3, 8])  # leaves its length in the buffers
        stopped = asyncio.ensure_future(ask(2, 64, [7]))
        await until(lambda: engine.first_chunks == 2)
        engine.create_instance().cancel(2)
        await stopped
        await all_ended(engine)
        return await Client(engine).answer(64, [7], session=3)

    assert run(test()) == stock_answer(engine, 64, [7])
    assert engine.virtual_tokens.figures().queue.rows.loads == 4 + 2


def test_sessions_that_stay_open_take_the_stock_path():
    engine = StandInEngine(slots=8)

    async def test():
        return await Client(engine).answer(0, [0], sequence_end=False)

    assert run(test()) == stock_answer(engine, 0, [0])
    figures = engine.virtual_tokens.figures()
    assert figures.virtual == 0 and figures.stock == 1


def test_a_penalty_waits_for_virtual_tokens_and_images_do_without_them_meanwhile():
    engine = StandInEngine(slots=8, seconds=0.1)

    async def test():
        client = Client(engine)
        virtual = asyncio.ensure_future(client.answer(0, [0]))
        await until(lambda: engine.running)
        penalised = asyncio.ensure_future(
            client.answer(0, [], gen_config=config(repetition_penalty=1.1)))
        await until(lambda: engine.virtual_tokens.figures().penalties)
        stock = asyncio.ensure_future(client.answer(0, [1]))
        await asyncio.gather(virtual, penalised, stock)
        await all_ended(engine)
        await client.answer(0, [1])

    run(test())
    figures = engine.virtual_tokens.figures()
    assert not engine.problems
    assert (figures.virtual, figures.stock, figures.penalties) == (2, 1, 1)


def test_a_penalty_of_a_caller_that_waits_is_kept_apart_as_well():
    engine = StandInEngine(slots=8, seconds=0.1)

    async def test():
        loop = asyncio.get_running_loop()
        virtual = asyncio.ensure_future(Client(engine).answer(0, [0]))
        await until(lambda: engine.running)
        stream = engine.create_instance().stream_infer(
            99, [5, 6, 7], gen_config=config(repetition_penalty=1.1), sequence_end=True)
        await asyncio.gather(virtual, loop.run_in_executor(None, list, stream))

    run(test())
    assert not engine.problems


def test_a_full_pool_is_waited_for_or_not_as_the_setting_says():
    async def test(engine):
        client = Client(engine)
        answers = await asyncio.gather(client.answer(0, [0]), client.answer(0, [1]))
        assert answers == expected
        return engine.virtual_tokens.figures()

    for wait in (True, False):
        engine = StandInEngine(slots=1, seconds=0.05, wait=wait)
        expected = [stock_answer(engine, 0, [0]), stock_answer(engine, 0, [1])]
        figures = run(test(engine))
        assert (figures.virtual, figures.stock) == ((2, 0) if wait else (1, 1))
        assert figures.queue.waits == wait


def test_an_image_larger_than_the_pool_takes_the_stock_path():
    engine = StandInEngine(slots=2)
    assert run(Client(engine).answer(0, [7])) == stock_answer(engine, 0, [7])
    assert engine.virtual_tokens.figures().stock == 1


def test_a_prompt_whose_keys_depend_on_its_length_takes_the_stock_path():
    engine = StandInEngine(slots=8)
    engine.virtual_tokens._most_tokens = 30
    assert run(Client(engine).answer(0, [7])) == stock_answer(engine, 0, [7])
    assert run(Client(engine).answer(0, [0])) == stock_answer(engine, 0, [0])
    figures = engine.virtual_tokens.figures()
    assert (figures.stock, figures.virtual) == (1, 1)


def test_rows_that_cannot_be_written_are_no_reason_to_fail(caplog):
    engine = StandInEngine(slots=2)

    def write(rows, index, features, then):
        raise RuntimeError('out of memory')

    engine.virtual_tokens._pool._writer.write = write
    assert run(Client(engine).answer(0, [0])) == stock_answer(engine, 0, [0])
    assert 'out of memory' in caplog.text and 'stock path' in caplog.text
    assert engine.virtual_tokens.figures().queue.rows.rows_in_use == 0
