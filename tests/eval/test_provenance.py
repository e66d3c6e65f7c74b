"""Where figures come from, and the files that benchmarks write."""
import json
import subprocess
import sys

import pytest

from lmdeploy_ext.eval.provenance import (ResultError, commit, machine, provenance, versions,
                                          write_json, write_result)

ROWS = [{'variant': 'stock', 'milliseconds': 115.}, {'variant': 'ours', 'milliseconds': 9.5}]
TARGETS = [{'name': 'ratio', 'want': 10, 'got': 12.1, 'met': True}]
FIELDS = {'commit': {'id': '0' * 40, 'dirty': False}}


def git(folder, *arguments):
    """Run git in a folder."""
    subprocess.run(
        ['git', '-C',
         str(folder), '-c', 'user.name=x', '-c', 'user.email=x@x', *arguments],
        check=True,
        capture_output=True)


def test_commit_says_when_the_tree_is_dirty(tmp_path):
    assert commit(tmp_path) is None
    git(tmp_path, 'init')
    git(tmp_path, 'commit', '--allow-empty', '-m', 'first')
    assert len(commit(tmp_path)['id']) == 40
    assert commit(tmp_path)['dirty'] is False
    (tmp_path / 'new.py').write_text('', encoding='utf-8')
    assert commit(tmp_path)['dirty'] is True


def test_machine_and_versions_are_known():
    assert machine()['cores'] >= 1
    assert machine()['cpu']
    assert versions(['lmdeploy-ext', 'no-such-package']) == {
        'python': '.'.join(map(str, sys.version_info[:3])),
        'lmdeploy-ext': '0.1.0',
        'no-such-package': None
    }
    json.dumps(provenance())


def test_the_command_can_be_typed_again():
    code = 'from lmdeploy_ext.eval.provenance import command; print(command())'
    module = subprocess.run([sys.executable, '-m', 'timeit', '-n1', '-r1', '-s', code, 'pass'],
                            capture_output=True,
                            text=True,
                            check=True)
    assert module.stdout.startswith("['python', '-m', 'timeit', '-n1'")


def test_a_result_is_written_whole(tmp_path):
    path = tmp_path / 'results' / 'images.json'
    write_result(path, rows=ROWS, targets=TARGETS, **FIELDS)
    result = json.loads(path.read_text(encoding='utf-8'))
    assert set(result) == {'command', 'commit', 'machine', 'versions', 'rows', 'targets'}
    assert result['rows'] == ROWS
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize('changes, message', [
    ({
        'rows': []
    }, 'rows of the result is empty'),
    ({
        'commit': None
    }, 'commit of the result is empty'),
    ({
        'color': 'red'
    }, 'color'),
    ({
        'targets': [{
            'name': 'ratio',
            'want': 10
        }]
    }, 'expected name, want, got, met'),
    ({
        'targets': [{
            **TARGETS[0], 'met': 'yes'
        }]
    }, '`met` a bool'),
    ({
        'rows': [{
            'milliseconds': float('nan')
        }]
    }, 'NaN'),
])
def test_incomplete_results_are_refused(tmp_path, changes, message):
    path = tmp_path / 'images.json'
    with pytest.raises(ResultError) as error:
        write_result(path, **{'rows': ROWS, 'targets': TARGETS, **FIELDS, **changes})
    assert message in str(error.value)
    assert not path.exists()


def test_a_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / 'x.json'
    write_json(path, {'a': 1})
    with pytest.raises(ValueError):
        write_json(path, {'a': float('inf')})
    assert json.loads(path.read_text(encoding='utf-8')) == {'a': 1}
    assert list(tmp_path.iterdir()) == [path]
