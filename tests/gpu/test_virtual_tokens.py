"""Virtual tokens on a GPU: every answer is the stock path's.

Answers are compared by the log-probabilities of the next token's likeliest candidates, among
these, within 0.1: a prompt with a cached prefix, or in another batch, is computed in other pieces,
whose sums differ in the last bits of the dtype. Greedy answers of random weights would flip on
such differences. Each test also sees that other images' answers are further away than that.

The stock path is taken for features that are numpy arrays, in the same engine.
"""
import asyncio
import random
import time

import pytest
import torch

import lmdeploy_ext.autopatch  # noqa: F401  LMDeploy is imported later, patched
from lmdeploy_ext.turbomind.self_test import distance, random_features

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='TurboMind runs on GPUs only'),
]
TOLERANCE = 0.1
LIKELIEST, TILE, POOL_SLOTS = 8, 256, 26
IMAGES = 20 * POOL_SLOTS  # of one to three tiles


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    from lmdeploy_ext.models.checkpoint import write_checkpoint
    folder = tmp_path_factory.mktemp('virtual-tokens') / 'internvl2-2b'
    write_checkpoint(folder, '2b', device='cuda')
    return str(folder)


@pytest.fixture(scope='module')
def engine(folder):
    """About 30,000 tokens of KV blocks, a pool of 26 tiles."""
    from lmdeploy.messages import TurbomindEngineConfig
    from lmdeploy.turbomind import TurboMind
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('LMDEPLOY_EXT_FEATURE_POOL_ROWS', str(POOL_SLOTS * TILE))
        engine = TurboMind.from_pretrained(
            folder, chat_template_name='internvl2-internlm2',
            engine_config=TurbomindEngineConfig(cache_max_entry_count=0.02, session_len=8192,
                                                max_batch_size=32, enable_prefix_caching=True))
    assert engine.virtual_tokens is not None, 'the log has a WARNING with the reason'
    return engine


class Client:
    """Asks an engine about images that are random features."""

    def __init__(self, engine):
        self.engine, self.session = engine, 0
        self.model = engine.config.model_config
        rng = torch.Generator().manual_seed(1)
        self.text = torch.randint(3, self.model.vocab_size, (4096, ), generator=rng).tolist()

    def features(self, number):
        """[tokens, hidden] on the GPU, with their key."""
        rng = torch.Generator('cuda').manual_seed(number)
        features = random_features((1 + number % 3) * TILE, self.model.hidden_units, rng).half()
        features.feature_key = b'%d' % number
        return features

    def prompt(self, before, images, after, stock):
        ids, ranges, embeddings = self.text[:before], [], []
        for number in images:
            features = self.features(number)
            ranges.append([len(ids), len(ids) + len(features)])
            ids = ids + [0] * len(features) + self.text[100:103]
            embeddings.append(features.cpu().numpy() if stock else features)
        return dict(input_ids=ids + self.text[200:200 + after],
                    input_embeddings=embeddings or None,
                    input_embedding_ranges=ranges or None)

    async def answer(self, before, images, after=5, stock=False, session=None, tokens=1,
                     **options):
        """Log-probabilities of the next token."""
        from lmdeploy.messages import GenerationConfig
        config = GenerationConfig(max_new_tokens=tokens, top_k=LIKELIEST, top_p=1.0,
                                  temperature=1.0, random_seed=1, ignore_eos=True,
                                  logprobs=LIKELIEST,
                                  repetition_penalty=options.pop('penalty', 1.0))
        self.session += 1
        options = {**dict(sequence_start=True, sequence_end=True), **options}
        stream = self.engine.create_instance().async_stream_infer(
            session or self.session, **self.prompt(before, images, after, stock),
            gen_config=config, **options)
        async for output in stream:
            last = output
        return last.logprobs[0]

    async def ended(self):
        for _ in range(500):
            figures = self.engine.virtual_tokens.figures().queue
            if not figures.rows.rows_in_use and not figures.waiting:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(str(figures))


@pytest.fixture
def client(engine):
    return Client(engine)


def figures(client):
    return client.engine.virtual_tokens.figures()


async def compare(client, prompts, at_once=16, **options):
    """Ask both ways; answers of different prompts must be told apart."""
    places = asyncio.Semaphore(at_once)

    async def one(prompt, **kind):
        async with places:
            return await client.answer(*prompt, **kind)

    stock = await asyncio.gather(*[one(prompt, stock=True) for prompt in prompts])
    virtual = await asyncio.gather(*[one(prompt, **options) for prompt in prompts])
    distances = [distance(*pair) for pair in zip(stock, virtual)]
    assert max(distances) <= TOLERANCE, distances
    others = [distance(one, other) for one, other in zip(stock, stock[1:]) if one is not other]
    assert sum(far > TOLERANCE for far in others) > len(others) / 2, 'the test can tell nothing'


def test_answers_are_the_stock_paths_around_every_block_boundary(client):
    rng = random.Random(0)
    prompts = [(before, [rng.randrange(9) for _ in range(rng.choice([1, 1, 2, 3]))],
                rng.randrange(1, 80))
               for before in (0, 1, 62, 63, 64, 65, 127, 128, 129, 500) for _ in range(20)]
    before = figures(client).virtual
    asyncio.run(compare(client, prompts))
    assert figures(client).virtual - before == len(prompts)


def test_pool_reuse_of_twenty_times_its_rows(client):
    rng = random.Random(1)
    numbers = [*range(IMAGES), *reversed(range(IMAGES)), *rng.choices(range(IMAGES), k=IMAGES)]
    asyncio.run(compare(client, [(40, [number], 5) for number in numbers], at_once=8))
    assert figures(client).queue.rows.reuses > 20 * POOL_SLOTS


def test_the_same_image_is_prefilled_once(client):
    """Of 6 images of 3 tiles, the second question takes less than half the time of the first."""
    images = [3 * number + 2 + 3 * IMAGES for number in range(6)]

    async def seconds(after):
        began = time.perf_counter()
        await client.answer(0, images, after)
        return time.perf_counter() - began

    async def test():
        await client.answer(0, [3 * IMAGES], 5)  # whatever is slow once
        return await seconds(5), await seconds(9)

    first, second = asyncio.run(test())
    assert second < first / 2, (first, second)


def test_penalties_beside_virtual_tokens_harm_nobody(client):
    async def test():
        noise = [asyncio.ensure_future(client.answer(300, [], penalty=1.3, tokens=20))
                 for _ in range(20)]
        await compare(client, [(64, [number], 5) for number in range(40)])
        await asyncio.gather(*noise)
        penalised = [await client.answer(64, [1], penalty=1.3, stock=stock)
                     for stock in (True, False)]
        assert distance(*penalised) <= TOLERANCE

    asyncio.run(test())


def test_cancelled_requests_leave_nothing_behind(client):
    async def test():
        for delay in (0, 0.001, 0.003, 0.01, 0.03):
            session = 10**6 + int(delay * 1000)
            task = asyncio.ensure_future(client.answer(200, [2, 5, 8], 5, session=session,
                                                       tokens=200))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, client.engine.create_instance().cancel, session)
        await client.ended()
        await compare(client, [(200, [2, 5, 8], after) for after in range(1, 30)])
        await client.ended()

    asyncio.run(test())


def test_sessions_that_stay_open_go_on(client):
    async def turns(stock, session):
        first = await client.answer(64, [4], session=session, sequence_end=False, stock=stock)
        step = 64 + len(client.features(4)) + 3 + 5 + 1
        second = await client.answer(0, [], 30, session=session, sequence_start=False, step=step)
        return first, second

    async def test():
        stock, ours = await turns(True, 10**7), await turns(False, 10**7 + 1)
        assert all(distance(*pair) <= TOLERANCE for pair in zip(stock, ours))

    asyncio.run(test())


def test_more_sequences_than_kv_blocks_hold(client):
    """20 prompts of 3,000 tokens in 30,000: some are preempted, and computed anew from ids."""
    images, rng = [2 + 3 * number for number in range(POOL_SLOTS // 3)], random.Random(2)
    prompts = [(before, rng.sample(images, 4), 5) for before in range(0, 200, 10)]
    asyncio.run(compare(client, prompts, at_once=20, tokens=100))


def test_pipeline_with_pictures(folder, monkeypatch):
    """Features stay on the GPU; questions 2 and 3 find the image."""
    from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
    from lmdeploy.model import ChatTemplateConfig
    from PIL import Image
    picture = Image.effect_noise((640, 480), 90).convert('RGB')
    prompts = [(f'What is this, number {number}?', picture) for number in range(3)]
    config = GenerationConfig(max_new_tokens=1, top_k=1)
    answers = []
    for caching in (False, True):
        pipe = pipeline(folder, chat_template_config=ChatTemplateConfig('internvl2-internlm2'),
                        backend_config=TurbomindEngineConfig(cache_max_entry_count=0.02,
                                                             enable_prefix_caching=caching))
        answers.append([pipe(prompt, gen_config=config).text for prompt in prompts])
        if caching:
            rows = pipe.engine.virtual_tokens.figures().queue.rows
            assert rows.hit_images >= 2
        del pipe
    assert answers[0] == answers[1]
