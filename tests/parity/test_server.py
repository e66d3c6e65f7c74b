"""`lmdeploy serve api_server` in a process of its own, patched, on a machine without a GPU."""
import base64
import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from lmdeploy import PytorchEngineConfig, pipeline

from tests.parity.engine import greedy
from tests.parity.pixels import picture

TOKENS = 5
LMDEPLOY = Path(sys.executable).with_name('lmdeploy')
NO_GPU = dict(CUDA_VISIBLE_DEVICES='')


class Server:
    """A running server and what it has said."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log

    def chat(self, content, **fields):
        """Ask one question, greedily."""
        body = dict(dict(model=self.model(), messages=[dict(role='user', content=content)],
                         max_tokens=TOKENS, top_k=1, ignore_eos=True), **fields)
        return httpx.post(f'{self.url}/v1/chat/completions', json=body, timeout=60)

    def model(self):
        return httpx.get(f'{self.url}/v1/models', timeout=60).json()['data'][0]['id']


@pytest.fixture(scope='module')
def serve(checkpoint, tmp_path_factory):
    """Starts servers with options of the command line."""
    folder = tmp_path_factory.mktemp('server')
    (folder / 'sitecustomize.py').write_text('import lmdeploy_ext.autopatch\n')
    servers = []

    def start(*options):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        log = folder / f'{port}.log'
        paths = filter(None, [str(folder), os.environ.get('PYTHONPATH')])
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), **NO_GPU)
        command = [LMDEPLOY, 'serve', 'api_server', checkpoint(), '--server-name', '127.0.0.1',
                   '--server-port', str(port), *options]
        with open(log, 'wb') as file:
            process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
        server = Server(process, f'http://127.0.0.1:{port}', log)
        servers.append(server)
        _wait_until_ready(server)
        return server

    yield start
    for server in servers:
        server.process.terminate()
        server.process.wait(20)


def _wait_until_ready(server):
    for _ in range(240):
        assert server.process.poll() is None, server.log.read_text()
        try:
            if httpx.get(f'{server.url}/health', timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    pytest.fail(f'not ready after 60 s: {server.log.read_text()}')


@pytest.fixture(scope='module')
def server(serve):
    """The plain command: nothing says that there is no GPU."""
    return serve()


def with_image(text, image, **fields):
    file = io.BytesIO()
    image.save(file, 'PNG')
    url = 'data:image/png;base64,' + base64.b64encode(file.getvalue()).decode()
    return [dict(type='text', text=text),
            dict(type='image_url', image_url=dict(url=url, **fields))]


def test_one_line_says_that_it_runs_on_the_cpu(server):
    lines = [line for line in server.log.read_text().splitlines() if 'No GPU found' in line]
    assert len(lines) == 1 and 'CPU' in lines[0]


def test_an_image_is_answered_as_in_process_with_log_probabilities(server, checkpoint, loop):
    image = picture(1, 300, 200)
    answer = server.chat(with_image('Describe it', image), logprobs=True, top_logprobs=2)
    assert answer.status_code == 200
    choice = answer.json()['choices'][0]
    pipe = pipeline(checkpoint(), PytorchEngineConfig(device_type='cpu'))
    expected = pipe(('Describe it', image), gen_config=greedy(TOKENS, logprobs=2))
    assert choice['message']['content'] == expected.text
    tokens = choice['logprobs']['content']
    found = [token['logprob'] for token in tokens]
    wanted = [record[i] for record, i in zip(expected.logprobs, expected.token_ids)]
    assert found == pytest.approx(wanted, abs=1e-4)
    # upstream leaves the chosen token out of the list of the likeliest
    assert [len(token['top_logprobs']) for token in tokens] == [1] * TOKENS


def test_an_image_that_fails_does_not_stop_the_next(server):
    image = picture(2, 64, 64)
    bad = server.chat(with_image('Describe it', image, detail=['high']))
    assert bad.status_code == 400 and 'the detail of an image is a list' in bad.json()['message']
    assert server.chat(with_image('Describe it', image)).status_code == 200


def test_asking_for_the_cpu_needs_no_warning(serve):
    server = serve('--backend', 'pytorch', '--device', 'cpu')
    assert server.chat('Hello').json()['usage']['completion_tokens'] == TOKENS
    assert 'No GPU found' not in server.log.read_text()
