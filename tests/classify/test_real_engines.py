"""The real thing on a tiny checkpoint: LMDeploy in this process, and its server."""
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmdeploy_ext.classify.result_file import read_header, read_rows

from .api_server import api_server
from .checkpoint import write_yes_no_checkpoint
from .fakes import wait_for, without_times

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'classify.py'
PROMPT = '房间里有床吗？请只回答是或否。'
SIZES = [(64, 48), (200, 90), (90, 200), (448, 448), (120, 120), (320, 240)]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_yes_no_checkpoint(tmp_path_factory.mktemp('classify') / 'model')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp('images')
    generator = np.random.default_rng(0)
    for number in range(24):
        width, height = SIZES[number % len(SIZES)]
        coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.BILINEAR)
        image.save(folder / f'{number:02}.jpg')
    (folder / '99-copy.jpg').write_bytes((folder / '03.jpg').read_bytes())
    whole = (folder / '05.jpg').read_bytes()
    (folder / '98-cut.jpg').write_bytes(whole[:len(whole) // 2])
    return folder


def command(images, output, *options):
    return [
        sys.executable,
        str(SCRIPT),
        str(images), '--labels', '是,否', '--prompt', PROMPT, '--output',
        str(output), '--concurrency', '4', *options
    ]


def run(*args):
    """Run scripts/classify.py to its end."""
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120)


@pytest.fixture(scope='module')
def in_process(model, images, tmp_path_factory):
    output = tmp_path_factory.mktemp('own') / 'rows.jsonl'
    done = run(images, output, '--model', str(model), '--csv', str(output.with_suffix('.csv')))
    assert done.returncode == 1, done.stderr[-3000:]
    return output, done.stderr


def test_in_process(in_process, images):
    output, stderr = in_process
    rows = list(read_rows(output))
    assert [row.id for row in rows] == sorted(os.listdir(images))
    good = [row for row in rows if row.error is None]
    assert len(good) == 25 and 'cut off' in rows[24].error
    assert {row.label for row in good} == {'是', '否'}
    on_label = [row for row in good if row.text in ('是', '否')]
    assert len(on_label) > 20 and all(row.text == row.label for row in on_label)
    assert f'off-label: {25 - len(on_label)}' in stderr
    assert all(row.probabilities[row.label] >= 0.5 for row in good)
    assert len({row.input_tokens for row in good}) > 1, 'tiles depend on the size'
    assert rows[25].probabilities == rows[3].probabilities
    assert 'errors: 1' in stderr and 'identical images: 1' in stderr and 'images/min' in stderr
    assert output.with_suffix('.csv').read_text().startswith('id,path,label,p_是,p_否,')


def test_the_header_tells_what_the_rows_were_computed_with(in_process, model):
    header = read_header(in_process[0])
    assert header['model']['path'] == str(model) and len(header['model']['fingerprint']) == 16
    assert (header['prompt'], header['labels']) == (PROMPT, ['是', '否'])
    assert header['settings']['patches'] == 'all'
    assert header['engine']['backend'] == 'pytorch' and header['engine']['device'] == 'cpu'
    assert header['versions'].keys() == {'lmdeploy', 'lmdeploy_ext'}
    assert header['patches']['engine_instance_logprobs'] == 'applied'


def test_a_gpu_that_was_asked_for_and_is_not_there(model, images, tmp_path, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    output = tmp_path / 'rows.jsonl'
    done = run(images, output, '--model', str(model), '--device', 'cuda', '--quiet')
    assert done.returncode == 2
    said = 'classify: no GPU found for --device cuda; choose --device auto or cpu\n'
    assert done.stderr.endswith(said)
    assert not output.exists()


def test_a_server_gives_the_same_rows(in_process, model, images, tmp_path):
    with api_server(model, tmp_path / 'log.txt') as url:
        done = run(images, tmp_path / 'rows.jsonl', '--server', url)
    assert done.returncode == 1, done.stderr[-3000:]
    ours, theirs = (list(map(json.loads, without_times(path)))
                    for path in (in_process[0], tmp_path / 'rows.jsonl'))
    for own, served in zip(ours, theirs):
        # batches differ from run to run, and float32 sums with them
        assert served.pop('probabilities') == pytest.approx(own.pop('probabilities'), abs=1e-4)
    assert ours == theirs


def test_killed_and_resumed_it_is_the_same_file(in_process, model, images, tmp_path):
    output = tmp_path / 'rows.jsonl'
    options = ('--model', str(model), '--quiet')
    process = subprocess.Popen(command(images, output, *options), stderr=subprocess.DEVNULL)
    wait_for(lambda: output.exists() and output.read_bytes().count(b'\n') > 5, 90)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = output.read_bytes().count(b'\n') - 1
    done = run(images, output, *options)
    assert done.returncode == 1 and 5 <= kept < 26, done.stderr[-3000:]
    ours, whole = (list(map(json.loads, without_times(path))) for path in (output, in_process[0]))
    for own, other in zip(ours, whole):
        assert own.pop('probabilities') == pytest.approx(other.pop('probabilities'), abs=1e-4)
    assert ours == whole


LONG = '这是房间的照片。' * 12 + PROMPT


def prompt_first(images, output, *options):
    done = run(images, output, '--prompt', LONG, '--prompt-first', *options)
    assert done.returncode == 1, done.stderr[-3000:]
    return list(map(json.loads, without_times(output))), done.stderr


def test_prompt_first_computes_the_prompt_once(model, images, tmp_path):
    output, plain = tmp_path / 'rows.jsonl', tmp_path / 'plain.jsonl'
    ours, said = prompt_first(images, output, '--model', str(model))
    header = read_header(output)
    assert header['settings']['prompt_first'] and header['engine']['prefix_caching']
    share = int(re.search(r'prefix cache: \d+ of \d+ prompt tokens \((\d+)%\)', said)[1])
    assert share > 40
    # the other layout is another run, and another question to the model
    refused = run(images, output, '--prompt', LONG, '--model', str(model))
    assert refused.returncode == 2 and 'settings.prompt_first: true there' in refused.stderr
    done = run(images, plain, '--prompt', LONG, '--model', str(model))
    assert done.returncode == 1 and 'prefix cache' not in done.stderr
    assert read_header(plain)['engine']['prefix_caching'] is False
    others = list(map(json.loads, without_times(plain)))
    pairs = [(one, other) for one, other in zip(ours, others) if one['error'] is None]
    # places are as many, but for how a text is cut into tokens at its ends
    assert all(abs(one['input_tokens'] - other['input_tokens']) <= 2 for one, other in pairs)
    assert any(one['probabilities'] != pytest.approx(other['probabilities'], abs=1e-4)
               for one, other in pairs)

    with api_server(model, tmp_path / 'log.txt', '--enable-prefix-caching') as url:
        theirs, said = prompt_first(images, tmp_path / 'served.jsonl', '--server', url)
    assert re.search(r'prefix cache: \d+ of \d+ prompt tokens', said)
    for own, served in zip(ours, theirs):
        assert served.pop('probabilities') == pytest.approx(own.pop('probabilities'), abs=1e-4)
    assert ours == theirs


def test_prompt_first_leaves_upstreams_own_cache_off(model, images, tmp_path, monkeypatch):
    """It would answer about other images."""
    monkeypatch.setenv('LMDEPLOY_EXT_PATCHES', 'cpu')
    output = tmp_path / 'rows.jsonl'
    # upstream does not see by config.json which one it is
    options = ('--model', str(model), '--chat-template', 'internvl2-internlm2')
    prompt_first(images, output, *options)
    assert read_header(output)['engine']['prefix_caching'] is False
    refused = run(images, tmp_path / 'none.jsonl', *options, '--prefix-caching')
    assert refused.returncode == 2 and 'without the patch block_trie_match' in refused.stderr
