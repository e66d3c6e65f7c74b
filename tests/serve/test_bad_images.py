"""What becomes of each kind of image, good or bad: in `pipeline`, the server and classify.py."""
import asyncio
import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest
from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline
from PIL import Image

from lmdeploy_ext.classify.result_file import read_header, read_rows
from lmdeploy_ext.vl.image_errors import BadImageReference, UnreadableImage
from tests.classify.api_server import api_server
from tests.classify.checkpoint import write_yes_no_checkpoint
from tests.parity.loops import loop  # noqa: F401  a fixture
from tests.vl.image_files import HTML, animated, cut, data_url, encoded, jpeg, picture, png_bomb

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'classify.py'
QUESTION = '房间里有床吗？请只回答是或否。'
OPEN = {'LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES': '1', 'LMDEPLOY_EXT_IMAGE_URL_SECONDS': '1'}

FILES = {  # file -> its content, and the error; None where it is answered
    'plain.jpg': (jpeg(300, 200), None),
    '1x1.png': (encoded(picture(1, 1), 'PNG'), None),
    '1x10000.png': (encoded(picture(1, 10_000), 'PNG'), None),
    '10000x1.png': (encoded(picture(10_000, 1), 'PNG'), None),
    'animated.webp': (animated('WEBP'), None),
    'exif-6.jpg': (jpeg(300, 200, orientation=6), None),
    'empty.jpg': (b'', 'found no bytes at all'),
    '200-bytes.jpg': (jpeg(300, 200)[:200], 'JPEG'),
    'cut.jpg': (cut(jpeg(300, 200)), 'the JPEG file is cut off after'),
    'html.jpg': (HTML, 'no image; expected JPEG'),
    'bomb.png': (png_bomb(), 'the image has 30000x30000 pixels'),
}
GOOD = data_url(jpeg(300, 200))


@pytest.fixture(scope='module')
def web():
    """Address of a server that never answers, or redirects to itself by another name."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):

        def do_GET(self):
            if self.path == '/silent.jpg':
                over.wait(60)
                return
            self.send_response(302)
            self.send_header('Location', f'http://localhost:{server.server_address[1]}/x.jpg')
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01, ))
    thread.start()
    yield f'http://127.0.0.1:{server.server_address[1]}'
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope='module')
def cases(web, tmp_path_factory):
    """What a request calls an image -> its error, or None."""
    folder = tmp_path_factory.mktemp('images')
    for name, (content, _) in FILES.items():
        (folder / name).write_bytes(content)
    return {
        **{str(folder / name): error for name, (_, error) in FILES.items()},
        str(folder / 'missing.jpg'): 'cannot be read: No such file',
        'data:image/jpeg;base64': 'data URL',
        'data:image/jpeg;base64,@@@@': 'base64',
        f'{web}/silent.jpg': '1 s',
        f'{web}/redirect.jpg': 'LMDEPLOY_EXT_IMAGE_OTHER_HOSTS=1',
    }


@pytest.fixture(scope='module')
def private(web):
    """Cases where private addresses are not allowed."""
    return {f'{web}/x.jpg': 'LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES=1', GOOD: None}


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_yes_no_checkpoint(tmp_path_factory.mktemp('bad-images') / 'model')


def ask_in_process(model, cases):
    pipe = pipeline(str(model), PytorchEngineConfig(device_type='cpu'))
    config = GenerationConfig(max_new_tokens=1)
    for reference, error in cases.items():
        if error is None:
            answer = pipe((QUESTION, reference), gen_config=config)
            assert answer.input_token_len > 20
        else:
            with pytest.raises(UnreadableImage, match=re.escape(error)):
                pipe((QUESTION, reference), gen_config=config)
    return pipe


@pytest.mark.filterwarnings('ignore::ResourceWarning')
def test_pipeline(model, cases, private, monkeypatch, loop):  # noqa: F811
    ask_in_process(model, private)
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    pipe = ask_in_process(model, cases)
    # a picture on its side is answered as the upright one
    upright = picture(300, 200)
    lying = encoded(np.rot90(upright), 'PNG', orientation=6)
    config = GenerationConfig(max_new_tokens=1, top_k=1, logprobs=5)
    one, two = pipe([(QUESTION, lying), (QUESTION, Image.fromarray(upright))], gen_config=config)
    assert one.logprobs[0] == pytest.approx(two.logprobs[0], abs=1e-4)
    assert one.input_token_len == two.input_token_len


@pytest.mark.filterwarnings('ignore::ResourceWarning')
def test_a_batch_with_a_bad_image_is_finished_before_its_error(model, loop):  # noqa: F811
    pipe = pipeline(str(model), PytorchEngineConfig(device_type='cpu'))
    config = GenerationConfig(max_new_tokens=3, ignore_eos=True)
    prompts = [(QUESTION, GOOD), (QUESTION, 'nowhere.jpg'), QUESTION]
    expected = [pipe(prompts[index], gen_config=config).text for index in (0, 2)]
    before = len(asyncio.all_tasks(loop))
    with pytest.raises(BadImageReference, match='nowhere.jpg'):
        pipe(prompts, gen_config=config)
    assert len(asyncio.all_tasks(loop)) == before
    texts = ['', '', '']
    with pytest.raises(BadImageReference, match='nowhere.jpg'):
        for output in pipe.stream_infer(prompts, gen_config=config):
            texts[output.index] += output.text
    assert texts == [expected[0], '', expected[1]]


class Client:
    """Asks a server."""

    def __init__(self, url):
        self.url = url
        self.model = httpx.get(f'{url}/v1/models', timeout=60).json()['data'][0]['id']

    def chat(self, reference, **fields):
        content = [dict(type='text', text=QUESTION),
                   dict(type='image_url', image_url=dict(url=reference))]
        body = dict(model=self.model, messages=[dict(role='user', content=content)], max_tokens=1,
                    **fields)
        return httpx.post(f'{self.url}/v1/chat/completions', json=body, timeout=60)

    def interactive(self, reference, **fields):
        body = dict(prompt=QUESTION, image_url=reference, request_output_len=1, **fields)
        return httpx.post(f'{self.url}/v1/chat/interactive', json=body, timeout=60)


def check(answer, error):
    if error is None:
        assert answer.status_code == 200 and 'error' not in answer.text
        return
    assert answer.status_code == 400
    body = answer.json()
    assert error in body.pop('message')
    assert body == dict(object='error', type='invalid_request_error', code=400, param=None)


def ask_server(client, cases):
    """All cases at once, each in four ways; the good ones are answered beside the bad ones."""
    ways = [(ask, stream) for ask in (client.chat, client.interactive)
            for stream in (False, True)]
    with ThreadPoolExecutor(16) as pool:
        asked = [(error, pool.submit(ask, reference, stream=stream))
                 for reference, error in cases.items() for ask, stream in ways]
        for error, answer in asked:
            check(answer.result(), error)


def test_server(model, cases, private, tmp_path, monkeypatch):
    with api_server(model, tmp_path / 'log.txt') as url:
        ask_server(Client(url), private)
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    with api_server(model, tmp_path / 'log.txt') as url:
        client = Client(url)
        ask_server(client, cases)
        bad = next(reference for reference, error in cases.items() if error)
        check(client.chat(bad, session_id=777), cases[bad])
        check(client.chat(GOOD, session_id=777), None)
        body = dict(type='image_url', image_url=dict(detail='low'))
        answer = httpx.post(f'{url}/v1/chat/completions', timeout=60, json=dict(
            model=client.model, messages=[dict(role='user', content=[
                dict(type='text', text=QUESTION), body])]))
        check(answer, 'an image_url without url')
    log = (tmp_path / 'log.txt').read_text()
    assert 'Traceback' not in log and 'tiles=native' in log


def classify(model, cases, folder):
    manifest = folder / 'images.jsonl'
    lines = [json.dumps(dict(id=str(number), image=reference))
             for number, reference in enumerate(cases)]
    manifest.write_text('\n'.join(lines), encoding='utf-8')
    command = [sys.executable, str(SCRIPT), str(manifest), '--labels', '是,否', '--prompt',
               QUESTION, '--output', str(folder / 'rows.jsonl'), '--model', str(model),
               '--allow-missing', '--quiet']
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr[-3000:]
    for row, error in zip(read_rows(folder / 'rows.jsonl'), cases.values(), strict=True):
        assert row.error is None if error is None else error in row.error
    return command


def test_classify(model, cases, private, tmp_path, monkeypatch):
    for name in ('private', 'open'):
        (tmp_path / name).mkdir()
    classify(model, private, tmp_path / 'private')
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    command = classify(model, cases, tmp_path / 'open')
    settings = read_header(tmp_path / 'open' / 'rows.jsonl')['settings']['tiles']
    assert (settings['kind'], settings['pixels']) == ('native', 'fast')
    # rows of another policy do not belong into the same file
    monkeypatch.setenv('LMDEPLOY_EXT_TILES', 'stock')
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and 'settings.tiles' in done.stderr
