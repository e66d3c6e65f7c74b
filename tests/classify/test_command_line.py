"""scripts/classify.py: each wrong input is one line, at once, and costs nothing that is there."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy_ext.classify.header import fingerprint
from lmdeploy_ext.classify.result_file import read_header, read_rows

from .chat_server import ChatServer
from .checkpoint import write_yes_no_checkpoint
from .fakes import jpeg, wait_for, without_times, write_images

# 是 and 否 as byte-level BPE spells them, and so LMDeploy's server.
PIECES = ('æĺ¯', 'åĲ¦')
SCRIPT = Path(__file__).parents[2] / 'scripts' / 'classify.py'


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_yes_no_checkpoint(tmp_path_factory.mktemp('command') / 'model')


@pytest.fixture
def images(tmp_path):
    write_images(tmp_path / 'in', 4)
    return tmp_path / 'in'


def command(*options, imports=False):
    return [
        sys.executable, *(['-X', 'importtime'] if imports else []),
        str(SCRIPT), *map(str, options)
    ]


def classify(*options, imports=False, **env):
    return subprocess.run(command(*options, imports=imports),
                          capture_output=True,
                          text=True,
                          timeout=120,
                          env={
                              **os.environ,
                              **env
                          })


def refusal(*options, **env):
    """The one line that refuses, from a process that has not imported LMDeploy."""
    done = classify(*options, imports=True, **env)
    imported = [line for line in done.stderr.splitlines() if line.startswith('import time:')]
    said = [line for line in done.stderr.splitlines() if not line.startswith('import time:')]
    assert done.returncode == 2 and done.stdout == ''
    assert not [line for line in imported if line.split('|')[-1].strip() in ('torch', 'lmdeploy')]
    assert len(said) == 1, said
    return said[0]


def asked(images, tmp_path, *options, model='eval/demo/model'):
    return (images, '--labels', '是,否', '--prompt', '?', '--output', tmp_path / 'rows.jsonl',
            '--model', model, *options)


@pytest.fixture
def folder(tmp_path):
    """A folder that passes for a model until it is loaded."""
    path = tmp_path / 'model'
    path.mkdir()
    (path / 'config.json').write_text('{}')
    return path


def test_a_missing_model(images, tmp_path):
    said = refusal(*asked(images, tmp_path, model=tmp_path / 'none'))
    assert said == (f'classify: {tmp_path}/none is no model: there is no such folder; give the '
                    f'folder of a checkpoint, for example eval/demo/model, as --model')
    assert 'it has no config.json' in refusal(*asked(images, tmp_path, model=tmp_path))
    assert not (tmp_path / 'rows.jsonl').exists()


def test_wrong_images(tmp_path, folder):
    assert 'does not exist' in refusal(*asked(tmp_path / 'none', tmp_path, model=folder))
    manifest = tmp_path / 'm.jsonl'
    manifest.write_text('{"image": "gone.jpg"}\n')
    assert '1 missing files' in refusal(*asked(manifest, tmp_path, model=folder))
    manifest.write_text('{"image": "https://h/a"}\n' * 2)
    assert '1 duplicate ids' in refusal(*asked(manifest, tmp_path, model=folder))
    said = refusal(*asked(manifest, tmp_path, '--split', 'test', model=folder))
    assert "no split; found the columns image: add a 'split' column" in said


def test_wrong_labels(images, tmp_path, folder):
    options = asked(images, tmp_path, model=folder)
    assert 'an empty label' in refusal(*options, '--labels', '是,')
    assert "'是' stands twice" in refusal(*options, '--labels', '是,是')
    assert 'one label alone' in refusal(*options, '--labels', '是')


def test_no_prompt(images, tmp_path, folder):
    said = refusal(images, '--labels', 'a,b', '--output', tmp_path / 'x.jsonl', '--model', folder)
    assert 'no prompt for' in said and 'give --prompt' in said


def test_an_output_that_cannot_be_written(images, tmp_path, folder):
    options = asked(images, tmp_path, model=folder)
    assert 'Is a directory' in refusal(*options, '--output', tmp_path)
    assert 'cannot write' in refusal(*options, '--csv', tmp_path / 'model' / 'config.json' / 'x')
    assert not (tmp_path / 'rows.jsonl').exists()


def test_an_output_of_something_else_or_of_another_run(images, tmp_path, folder):
    output = tmp_path / 'rows.jsonl'
    output.write_text('precious\n')
    options = asked(images, tmp_path, model=folder)
    assert 'is no result file of classify' in refusal(*options)
    header = {
        'model': {
            'path': 'm',
            'fingerprint': fingerprint(folder)
        },
        'prompt': 'other',
        'labels': ['是', '否'],
        'settings': {}
    }
    output.write_text(json.dumps({'lmdeploy_ext': header}) + '\n')
    before = output.read_bytes()
    said = refusal(*options)
    assert 'holds rows of another run (prompt: "other" there, "?" here; settings.engine' in said
    assert 'choose another --output, or pass --overwrite' in said
    assert output.read_bytes() == before


@pytest.mark.parametrize('option', ['--output', '--csv'])
def test_an_output_that_would_take_the_place_of_the_input(tmp_path, folder, option):
    write_images(tmp_path, 1)
    manifest = tmp_path / 'm.csv'
    manifest.write_text('image\n00000.jpg\n')
    said = refusal(*asked(manifest, tmp_path, option, manifest, '--overwrite', model=folder))
    assert f'{manifest} is named twice, as input or output' in said
    assert manifest.read_text() == 'image\n00000.jpg\n'


def test_wrong_settings(images, tmp_path, folder):
    options = asked(images, tmp_path, model=folder)
    said = refusal(*options, '--backend', 'turbomind', '--device', 'cpu')
    assert 'TurboMind runs on GPUs only' in said
    assert "'cpuu', which does not exist" in refusal(*options, LMDEPLOY_EXT_PATCHES='cpuu')
    done = classify(*options, '--concurrency', '0')
    assert done.returncode == 2 and '0 is not 1 or more' in done.stderr
    for timeout in ('0', 'nan', 'inf'):
        done = classify(*options, '--timeout', timeout)
        assert done.returncode == 2 and 'is not a number of seconds above 0' in done.stderr
    done = classify(*options, '--server', 'http://localhost')
    assert done.returncode == 2 and 'not allowed with' in done.stderr


def test_a_server_that_is_not_there(images, tmp_path):
    said = refusal(images, '--labels', '是,否', '--prompt', '?', '--output', tmp_path / 'rows.jsonl',
                   '--server', 'http://127.0.0.1:9')
    assert 'cannot reach http://127.0.0.1:9' in said


def test_labels_that_the_models_tokenizer_cannot_tell_apart(images, tmp_path, model):
    done = classify(*asked(images, tmp_path, '--labels', '是,否,是的', model=model))
    assert done.returncode == 2 and not (tmp_path / 'rows.jsonl').exists()
    said = [line for line in done.stderr.splitlines() if line.startswith('classify:')]
    assert len(said) == 1
    assert "the labels '是' and '是的' begin with the same token" in said[0]


def test_a_model_without_a_tokenizer_or_a_chat_template(images, tmp_path, folder):
    done = classify(*asked(images, tmp_path, model=folder))
    assert done.returncode == 2 and f'no usable tokenizer in {folder}' in done.stderr
    assert 'Traceback' not in done.stderr
    done = classify(*asked(images, tmp_path, '--chat-template', 'intrenvl2', model=folder))
    assert done.returncode == 2 and 'Traceback' not in done.stderr


def test_a_whole_run_against_a_server(images, tmp_path, model):
    (images / 'cut.jpg').write_bytes(jpeg(7, 64)[:-30])
    options = ('--labels', '是,否', '--prompt', '?', '--output', tmp_path / 'rows.jsonl',
               '--tokenizer', model, '--parquet', tmp_path / 'rows.parquet')
    with ChatServer(api_key='secret', pieces=PIECES) as server:
        done = classify(images, *options, '--server', server.url, LMDEPLOY_EXT_API_KEY='secret')
        assert done.returncode == 1, done.stderr
        assert len(server.requests) == 4
        (images / 'cut.jpg').write_bytes(jpeg(7, 64))
        again = classify(images, *options, '--server', server.url, '--retry-errors', '--quiet',
                         '--api-key', 'secret')
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == 5
    assert '5 rows' in done.stderr and 'errors: 1' in done.stderr
    assert 'rows.jsonl' not in again.stderr
    header = read_header(tmp_path / 'rows.jsonl')
    assert header['settings']['served_model'] == 'fake' and header['patches'] is None
    assert 'secret' not in (tmp_path / 'rows.jsonl').read_text()
    assert [row.error for row in read_rows(tmp_path / 'rows.jsonl')] == [None] * 5
    assert (tmp_path / 'rows.parquet').exists()


def test_ctrl_c_ends_it_cleanly_and_the_same_command_goes_on(tmp_path, model):
    write_images(tmp_path / 'in', 300)
    output = tmp_path / 'rows.jsonl'
    options = asked(tmp_path / 'in', tmp_path, '--concurrency', '2', model=model)
    process = subprocess.Popen(command(*options), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: output.exists() and output.read_bytes().count(b'\n') > 20, 90)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and 'Traceback' not in said, said
    assert 'interrupted: the same command goes on from here' in said
    kept = without_times(output)
    assert 20 <= len(kept) < 300
    done = classify(*options, '--quiet')
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(without_times(output)) == 300 and without_times(output)[:len(kept)] == kept


def test_help_names_inputs_output_and_exit_codes():
    done = classify('--help')
    assert done.returncode == 0
    for word in ('OpenAI batch', 'manifest', 'exit code', '--server', '--retry-errors'):
        assert word in done.stdout


def test_a_prompt_first_that_cannot_be(images, tmp_path, folder):
    options = asked(images, tmp_path, '--prompt-first', model=folder)
    assert "a model of the type None; expected one whose images may" in refusal(*options)
    (folder / 'config.json').write_text('{"model_type": "internvl_chat"}')
    said = refusal(*options, '--prompt', 'In <IMAGE_TOKEN>: a bed?')
    assert said == ('classify: --prompt-first with <IMAGE_TOKEN> in the prompt; expected one of '
                    'them to say where the image stands: leave the other one out')
    batch = tmp_path / 'batch.jsonl'
    parts = [{'type': 'text', 'text': 'In <IMAGE_TOKEN>: a bed?'},
             {'type': 'image_url', 'image_url': {'url': 'in/00000.jpg'}}]
    batch.write_text(json.dumps({'custom_id': 'one', 'body': {
        'messages': [{'role': 'user', 'content': parts}]}}))
    said = refusal(batch, '--labels', '是,否', '--output', tmp_path / 'rows.jsonl', '--model',
                   folder, '--prompt-first')
    assert "with <IMAGE_TOKEN> in the prompt of 'one'" in said
