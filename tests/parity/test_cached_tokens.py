"""How much of its prompt a request found in the prefix cache: what clients are told."""
import asyncio
import json

import httpx
import pytest
from lmdeploy import PytorchEngineConfig, pipeline

from tests.parity.engine import greedy
from tests.parity.pixels import picture
from tests.parity.test_server import serve, with_image  # noqa: F401  `serve` is a fixture

BLOCK = 16
SAME, OTHER = picture(1, 300, 200), picture(2, 300, 200)
TEXT = 'The same beginning of a question, ' * 3


@pytest.fixture(scope='module')
def server(serve):  # noqa: F811
    return serve('--enable-prefix-caching', '--cache-block-seq-len', str(BLOCK))


def usage(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()['usage']


def cached(answer):
    return usage(answer)['prompt_tokens_details']['cached_tokens']


def events(server, path, **body):
    """The JSON of a stream's events."""
    body = dict(dict(model=server.model(), max_tokens=3, top_k=1, ignore_eos=True, stream=True),
                **body)
    lines = httpx.post(f'{server.url}{path}', json=body, timeout=60).text.split('\n\n')
    assert lines[-2:] == ['data: [DONE]', '']
    return [json.loads(line[len('data: '):]) for line in lines[:-2]]


def test_usage_of_chat_completions(server):
    first = server.chat(with_image('Describe the image.', SAME))
    assert cached(first) == 0
    assert set(usage(first)) == {'prompt_tokens', 'total_tokens', 'completion_tokens',
                                 'prompt_tokens_details'}
    again = server.chat(with_image('How many beds are there?', SAME))
    assert cached(again) % BLOCK == 0
    assert cached(again) < usage(again)['prompt_tokens']
    # what stands before the image, which has 7 tiles of 16 tokens
    other = server.chat(with_image('Describe the image.', OTHER))
    assert cached(other) % BLOCK == 0
    assert cached(other) + 7 * 16 - BLOCK <= cached(again) <= cached(other) + 7 * 16 + BLOCK

    found = [event['usage']['prompt_tokens_details']['cached_tokens'] for event in events(
        server, '/v1/chat/completions', stream_options=dict(include_usage=True),
        messages=[dict(role='user', content=with_image('Is it a 厨房?', OTHER))])]
    assert len(found) > 1 and set(found) == {cached(again)}


def test_streams_are_left_alone_where_nobody_asks_for_usage(server):
    body = dict(messages=[dict(role='user', content='Hello')])
    assert {event['usage'] for event in events(server, '/v1/chat/completions', **body)} == {None}


def test_usage_of_completions_adds_up_over_prompts(server):
    prompts = [TEXT + 'one?', TEXT + 'two?', 'Something else altogether, but long enough?']

    def complete(prompts):
        return httpx.post(f'{server.url}/v1/completions', timeout=60, json=dict(
            model=server.model(), prompt=prompts, max_tokens=3, top_k=1))

    first = complete(prompts[0])
    assert cached(first) == 0 < usage(first)['prompt_tokens']
    single = cached(complete(prompts[1]))
    assert single >= 2 * BLOCK
    assert cached(complete(prompts[2])) == 0
    assert cached(complete([TEXT + 'three?', TEXT + 'four?', 'No?'])) == 2 * single

    streamed = events(server, '/v1/completions', prompt=['No, never?', TEXT + 'five?'],
                      stream_options=dict(include_usage=True))
    found = [event['usage']['prompt_tokens_details']['cached_tokens'] for event in streamed]
    assert found == sorted(found) and set(found) == {0, single}


def test_a_request_that_is_refused_is_refused(server):
    refused = server.chat(with_image('Describe it', SAME, detail=['high']))
    assert refused.status_code == 400
    nothing = server.chat('Hello', n=0)
    assert nothing.status_code == 400 and 'usage' not in nothing.json()


@pytest.fixture
def pipe(checkpoint, loop):

    def make(**settings):
        config = PytorchEngineConfig(device_type='cpu', block_size=BLOCK, **settings)
        return pipeline(checkpoint(), config)

    return make


def test_responses_of_a_pipeline(pipe):
    pipe = pipe(enable_prefix_caching=True)
    config = greedy(2)
    assert pipe(('Describe the image.', SAME), gen_config=config).cached_tokens == 0
    batch = [('How many beds?', SAME), ('How many beds?', OTHER), 'Who are you?']
    same, other, text = pipe(batch, gen_config=config)
    assert same.cached_tokens - other.cached_tokens >= 7 * 16 - BLOCK
    assert other.cached_tokens >= text.cached_tokens > 0
    streamed = list(pipe.stream_infer([('Is it day?', SAME), ('Is it night?', OTHER)],
                                      gen_config=config))
    assert {response.cached_tokens for response in streamed} == {same.cached_tokens}


@pytest.mark.parametrize('caching, mode', [(False, 'content'), (True, 'off')])
def test_without_prefix_caching_it_is_none_of_them(pipe, monkeypatch, caching, mode):
    monkeypatch.setenv('LMDEPLOY_EXT_PREFIX_CACHE', mode)
    pipe = pipe(enable_prefix_caching=caching)
    for _ in range(2):
        assert pipe((TEXT, SAME), gen_config=greedy(2)).cached_tokens == 0


def test_each_request_is_told_its_own(pipe):
    """Beginnings of different lengths, all at once, many more than run together; some of them are
    abandoned after their first output."""
    pipe = pipe(enable_prefix_caching=True, max_batch_size=4)
    ids = pipe.tokenizer.encode(TEXT * 4)
    blocks = len(ids) // BLOCK
    assert blocks > 5

    async def ask(session, shared, leave):
        # a text of its own behind what is known
        text = pipe.tokenizer.decode(ids[:shared * BLOCK]) + f' {session} {session * 7}'
        stream = pipe.generate(text, session, gen_config=greedy(4), do_preprocess=False)
        told = []
        async for output in stream:
            told.append(output.cached_tokens)
            if leave:
                break
        await stream.aclose()
        return told

    async def talk():
        await ask(1, blocks, False)
        cases = [(2 + number, number % blocks, number % 5 == 4) for number in range(24)]
        return cases, await asyncio.gather(*[ask(*case) for case in cases])

    cases, told = asyncio.get_event_loop().run_until_complete(talk())
    for (session, shared, _), figures in zip(cases, told):
        assert len(set(figures)) == 1
        # tokens at the seam may be cut in another way
        assert (shared - 1) * BLOCK <= figures[0] <= (shared + 1) * BLOCK, session
