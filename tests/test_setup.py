"""`make setup`: what a machine lacks is said in one sentence; doing it again costs nothing."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUP = ROOT / 'scripts' / 'setup.sh'
TOOLS = ('sh', 'cat', 'cksum', 'ls', 'sed', 'tr', 'awk', 'dirname', 'mkdir', 'df', 'rm')


@pytest.fixture
def machine(tmp_path):
    """A PATH with the shell tools that the script needs and nothing else: (folder, run)."""
    tools = tmp_path / 'bin'
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))

    def run(release, venv, **env):
        return subprocess.run(['sh', str(SETUP), release, str(venv)], capture_output=True,
                              text=True, env={'PATH': str(tools), **env}, timeout=60)

    return tools, run


def one_sentence(result):
    """The only line on stderr of a run that failed."""
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith('setup: ')
    return lines[0]


def test_unsupported_release_is_named_with_the_supported_ones(machine, tmp_path):
    message = one_sentence(machine[1]('0.6.5', tmp_path / 'venv'))
    assert '0.6.5 is not supported' in message and '0.6.0 0.6.4' in message


def test_no_python_says_what_to_install(machine, tmp_path):
    message = one_sentence(machine[1]('0.6.0', tmp_path / 'venv'))
    assert 'no Python 3.10 to 3.12' in message and 'PYTHON=' in message
    assert not (tmp_path / 'venv').exists()


def test_a_python_that_cannot_make_environments_is_passed_over(machine, tmp_path):
    tools, run = machine
    broken = tools / 'python3.11'
    broken.write_text('#!/bin/sh\nexit 1\n')
    broken.chmod(0o755)
    assert 'no Python 3.10 to 3.12' in one_sentence(run('0.6.0', tmp_path / 'venv'))


def test_a_full_disk_says_how_much_is_missing(machine, tmp_path):
    tools, run = machine
    (tools / 'python3.11').symlink_to(sys.executable)
    (tools / 'df').unlink()
    # stand-in for a full disk: the one thing a test cannot have
    (tools / 'df').write_text('#!/bin/sh\necho header\necho "/dev/x 9 9 2097152 9% /"\n')
    (tools / 'df').chmod(0o755)
    message = one_sentence(run('0.6.0', tmp_path / 'venv', PYTHON=sys.executable))
    assert 'need 8 GB' in message and '2 GB are free' in message
    assert not (tmp_path / 'venv').exists()


def test_a_finished_environment_is_left_alone(machine, tmp_path):
    tools, run = machine
    inputs = [ROOT / 'requirements/constraints-0.6.0.txt', ROOT / 'requirements/base.txt',
              ROOT / 'setup.cfg', ROOT / 'pyproject.toml', SETUP]
    checksum = subprocess.run(['cksum'], input=b''.join(p.read_bytes() for p in inputs),
                              capture_output=True, check=True).stdout.decode().strip()
    venv = tmp_path / 'venv'
    (venv / 'bin').mkdir(parents=True)
    python = venv / 'bin' / 'python'
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (venv / '.lmdeploy-ext-setup').write_text(f'{checksum} {ROOT}\n')
    before = sorted(os.listdir(venv))
    result = run('0.6.0', venv)
    assert (result.returncode, result.stdout, result.stderr) == (0, '', '')
    assert sorted(os.listdir(venv)) == before
    # somebody has uninstalled what the stamp promises
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 1\nexec {sys.executable} -S "$@"\n')
    result = run('0.6.0', venv)
    assert result.stdout.startswith('setup: installing LMDeploy 0.6.0')
    assert 'pip could not install' in one_sentence(result)


def test_every_constraints_file_pins_its_own_release():
    files = sorted((ROOT / 'requirements').glob('constraints-*.txt'))
    assert len(files) >= 2
    for file in files:
        release = file.stem.split('-', 1)[1]
        assert f'lmdeploy=={release}' in file.read_text().split()


def test_make_eval_without_a_manifest_says_so():
    done = subprocess.run(['make', '-C', str(ROOT), '-o', 'setup', 'eval', f'VENV={sys.prefix}'],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith('eval: no manifest of labelled images; make eval MANIFEST=')


def test_a_folder_with_a_blank_in_its_name(tmp_path):
    python = tmp_path / 'my environment' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(['make', '-C', str(ROOT), '-s', '-o', 'setup', 'eval',
                           f'VENV={tmp_path}/my environment', 'MANIFEST=my set.jsonl', 'OUT=out'],
                          capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:3] == ['-m', 'lmdeploy_ext.eval', 'run']
    assert '--manifest my set.jsonl --variants' in done.stdout and done.stderr == ''
