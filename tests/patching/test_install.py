import os
import shutil
import sys

import pytest

from lmdeploy_ext.patching import PatchError, install


@pytest.fixture
def script(tmp_path):

    def write(text):
        path = tmp_path / 'lmdeploy'
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize('text, interpreter', [
    ('#!/venv/bin/python3.11\nimport re\n', '/venv/bin/python3.11'),
    ('#! /venv/bin/python -E\n', '/venv/bin/python'),
    ('#!"/with blank/bin/python"\n', '/with blank/bin/python'),
    ('#!/bin/sh\n\'\'\'exec\' "/with blank/bin/python" "$0" "$@"\n\' \'\'\'\nimport re\n',
     '/with blank/bin/python'),
    ('#!/bin/sh\n\'\'\'exec\' /long/bin/python "$0" "$@"\n\' \'\'\'\n', '/long/bin/python'),
    ("#!/bin/sh\n'''exec' \"$(dirname \"$0\")\"/'python' \"$0\" \"$@\"\n' '''\n", None),
    ('#!/usr/bin/env lmdeploy-no-such-python\n', None),
    ('#!/usr/bin/env\n', None),
    ('#!python\n', None),
    ('#!/bin/sh\necho hello\n', None),
    ('\x7fELF\x00', None),
    ('', None),
])
def test_the_interpreter_of_a_script(script, text, interpreter):
    assert install.interpreter_of(script(text)) == interpreter


@pytest.mark.parametrize('words', ['sh', '-S sh', 'X=1 sh'])
def test_env_is_looked_up_on_the_path(script, words):
    assert install.interpreter_of(script(f'#!/usr/bin/env {words}\n')) == shutil.which('sh')


def test_a_command_whose_interpreter_cannot_be_told(script, monkeypatch):
    path = script('compiled')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', str(path.parent))
    assert install.command_warning() == \
        f'which Python runs {path} cannot be told; {sys.executable} is the one here'


def test_two_environments_of_one_python_are_told_apart(tmp_path, script, monkeypatch):
    (tmp_path / 'other').mkdir()
    other = tmp_path / 'other' / 'python'
    other.symlink_to(os.path.realpath(sys.executable))
    path = script(f'#!{other}\n')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', str(path.parent))
    assert f'{path} is run by {other}, this is {sys.executable}' in install.command_warning()
    path.write_text(f'#!{sys.executable}\n')
    assert install.command_warning() is None


@pytest.mark.parametrize('action, said', [(install.install, 'cannot be written'),
                                          (install.remove, 'cannot be deleted')])
def test_a_file_that_cannot_be_changed_is_one_line(tmp_path, monkeypatch, action, said):
    (tmp_path / 'lmdeploy_ext.pth').mkdir()  # root may do anything but this
    monkeypatch.setattr(install, 'pth_path', lambda: tmp_path / 'lmdeploy_ext.pth')
    with pytest.raises(PatchError, match=f'lmdeploy_ext.pth {said}') as caught:
        action()
    assert '\n' not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ['lmdeploy_ext.pth']
