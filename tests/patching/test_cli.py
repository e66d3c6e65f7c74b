"""The commands, as a user types them."""
import base64
import hashlib
import os

import pytest

from tests.patching.sandbox import ENGINE, Sandbox

STEP = 'return lambda self, n=1: "patched"'
USE = 'from lmdeploy.engine import Engine\nprint(Engine().step())'
EDITED = ENGINE.replace("return 'stock'", "return 'edited'")


@pytest.fixture
def patched(sandbox):
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP)
    sandbox.seam('register', 'lmdeploy.engine', 'pass')
    return sandbox


def test_patch_then_unpatch_leaves_site_packages_as_it_was(patched):
    before = patched.hashes()
    assert patched.cli('patch').code == 0
    changed = set(patched.hashes().items()) ^ set(before.items())
    assert [name for name, _ in changed] == ['lmdeploy_ext.pth']
    assert patched.run(USE).out == 'patched'
    assert patched.cli('unpatch') == (0, f'deleted {patched.pth}', '')
    assert patched.hashes() == before
    assert patched.cli('unpatch') == (0, f'nothing to delete: there is no {patched.pth}', '')


def test_patch_prints_the_status_and_twice_is_once(patched):
    first, second = patched.cli('patch'), patched.cli('patch')
    assert [line.split()[:3] for line in first.out.splitlines()[:3]] == [
        ['NAME', 'GROUP', 'STATE'],
        ['engine_step', 'correctness', 'ready'],
        ['register', 'seam', 'ready'],
    ]
    assert first.out.splitlines()[3] == f'{patched.python} is patched by {patched.pth}'
    assert second.out == first.out + ' (it was already)'
    assert patched.pth.read_text() == 'import lmdeploy_ext.autopatch\n'


def test_status_tells_whether_this_python_is_patched(patched):
    off = patched.cli('status')
    assert off.code == 0 and off.out.splitlines()[1].split()[2] == 'off'
    assert off.out.splitlines()[-1] == f'{patched.python} is not patched; `make patch` patches it'
    patched.cli('patch')
    on = patched.cli('status', LMDEPLOY_EXT_PATCHES='none')
    assert [line.split()[2] for line in on.out.splitlines()[1:]] == ['off', 'ready']
    on = patched.cli('status')
    assert [line.split()[2] for line in on.out.splitlines()[1:]] == ['ready', 'ready']


def test_patch_refuses_source_that_has_drifted(patched):
    patched.write('lmdeploy/engine.py', EDITED)
    done = patched.cli('patch')
    assert done.code == 1 and done.out == '' and not patched.pth.exists()
    assert done.err.startswith('error: patch engine_step: lmdeploy.engine:Engine.step of LMDeploy '
                               '0.6.0 has drifted: found ')
    status = patched.cli('status')
    assert status.code == 1 and status.out.splitlines()[1].split()[2] == 'drifted'
    assert patched.cli('patch', LMDEPLOY_EXT_PATCHES='-engine_step').code == 0


def test_patch_refuses_what_would_have_no_effect(patched, tmp_path):
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    (patched.site / 'lmdeploy_ext').rename(elsewhere / 'lmdeploy_ext')
    code = f'''
        import sys
        sys.path.append({str(elsewhere)!r})
        from lmdeploy_ext.patching.cli import main
        sys.exit(main(['patch']))
    '''
    done = patched.run(code)
    assert done.code == 1 and not patched.pth.exists()
    assert 'has no effect' in done.err and 'install this project with pip' in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write anywhere')
def test_site_packages_without_write_permission(patched):
    patched.site.chmod(0o555)
    done = patched.cli('patch')
    patched.site.chmod(0o755)
    assert done == (1, '', f'error: {patched.pth} cannot be written (Permission denied); use an '
                    f'environment of your own, `make setup` makes one')


def test_another_release_cannot_be_patched(tmp_path):
    sandbox = Sandbox(tmp_path / 'venv', release='0.6.5')
    for command in ('patch', 'status', 'check', 'diff'):
        done = sandbox.cli(command)
        assert done.code == 1 and done.out == ''
        assert done.err.startswith('error: LMDeploy 0.6.5 is not supported: lmdeploy-ext patches ')


def test_a_lmdeploy_command_of_another_python_is_named(patched, tmp_path):
    script = tmp_path / 'bin' / 'lmdeploy'
    script.parent.mkdir()
    script.write_text('#!/opt/other/bin/python3\nprint()\n')
    script.chmod(0o755)
    for command in ('patch', 'status'):
        done = patched.cli(command, PATH=f'{script.parent}:/usr/bin:/bin')
        folder = patched.python.parent
        assert done.code == 0
        assert done.err == (f'warning: {script} is run by /opt/other/bin/python3, this is '
                            f'{patched.python}; run {folder}/lmdeploy, or put {folder} first on '
                            f'PATH')
    script.write_text(f'#!{patched.python}\nprint()\n')
    assert patched.cli('status', PATH=f'{script.parent}:/usr/bin:/bin').err == ''
    assert 'lmdeploy is not on PATH' in patched.cli('status', PATH='/usr/bin:/bin').err


def unpacked(folder, release, engine=ENGINE):
    """A made-up unpacked wheel."""
    (folder / 'lmdeploy').mkdir(parents=True)
    (folder / 'lmdeploy/version.py').write_text(f"__version__ = '{release}'\n")
    (folder / 'lmdeploy/engine.py').write_text(engine)
    return str(folder)


def test_check_compares_every_release_it_is_given(patched, tmp_path):
    done = patched.cli('check')
    assert done.code == 0
    assert done.out == f'LMDeploy 0.6.0 in {patched.site}: 1 of 1 patches match, 0 not needed'
    roots = [unpacked(tmp_path / 'a', '0.6.0'), unpacked(tmp_path / 'b', '0.6.1', EDITED),
             unpacked(tmp_path / 'c', '0.6.2'), unpacked(tmp_path / 'd', '0.6.0', EDITED)]
    done = patched.cli('check', '--root', *roots[:2])
    assert done.code == 0
    assert done.out.splitlines()[1].endswith(': 0 of 0 patches match, 1 not needed')
    done = patched.cli('check', '--root', roots[2])
    assert done.code == 1 and 'LMDeploy 0.6.2 carries lmdeploy.engine:Engine.step' in done.err
    assert done.err.endswith('is not listed and would run unpatched; add it to upstream')
    done = patched.cli('check', '--root', roots[3])
    assert done.code == 1 and 'Engine.step of LMDeploy 0.6.0 has drifted' in done.err


def test_fingerprint_prints_what_a_declaration_wants(patched, tmp_path):
    roots = [unpacked(tmp_path / 'a', '0.6.0'), unpacked(tmp_path / 'b', '0.6.1'),
             unpacked(tmp_path / 'c', '0.6.2', EDITED)]
    done = patched.cli('fingerprint', 'lmdeploy.engine:Engine.step', '--root', *roots)
    assert done.code == 0
    found = eval(f'dict({done.out})')['upstream']
    assert list(found.values()) == ['0.6.0 to 0.6.1', '0.6.2']
    done = patched.cli('fingerprint', 'lmdeploy.engine:Engine.stop')
    assert done.code == 1 and done.err.startswith('error: Engine.stop is not defined in ')


def record(sandbox, name):
    """A RECORD as pip leaves it, with the hash of one file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256((sandbox.site / name).read_bytes()).digest())
    sandbox.write('lmdeploy-0.6.0.dist-info/METADATA',
                  'Metadata-Version: 2.1\nName: lmdeploy\nVersion: 0.6.0\n')
    sandbox.write('lmdeploy-0.6.0.dist-info/RECORD',
                  f'{name},sha256={digest.decode().rstrip("=")},1\n')


def test_diff_shows_what_was_edited(patched, tmp_path):
    record(patched, 'lmdeploy/engine.py')
    root = unpacked(tmp_path / 'released', '0.6.0')
    done = patched.cli('diff')
    assert done == (0, f'no patch has drifted from LMDeploy 0.6.0 in {patched.site}', '')
    done = patched.cli('diff', 'engine_step')
    assert done.code == 0 and 'expected' in done.out and '---' not in done.out
    patched.write('lmdeploy/engine.py', EDITED)
    for arguments in (['engine_step'], []):
        done = patched.cli('diff', *arguments, '--root', root)
        assert done.code == 1 and done.err == ''
        assert f'{patched.site}/lmdeploy/engine.py was changed after it was installed' in done.out
        assert f'--- LMDeploy 0.6.0 in {root}\n+++ installed in {patched.site}\n' in done.out
        assert "-    return 'stock'\n+    return 'edited'" in done.out


def test_diff_of_a_wrong_declaration(patched, tmp_path):
    record(patched, 'lmdeploy/engine.py')
    patched.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP,
                  upstream={'0123456789abcdef': '0.6.0 to 0.6.4'})
    done = patched.cli('diff', 'engine_step', '--root', unpacked(tmp_path / 'released', '0.6.0'))
    assert done.code == 1
    assert f'{patched.site}/lmdeploy/engine.py is as it was installed' in done.out
    assert 'no difference from that source: the patch lists another fingerprint' in done.out


def test_diff_names_the_release_that_the_source_is_from(patched, tmp_path):
    found = patched.cli('fingerprint', 'lmdeploy.engine:Engine.step').out.split("'")[1]
    patched.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP,
                  upstream={'0123456789abcdef': '0.6.0', found: '0.6.3 to 0.6.4'})
    done = patched.cli('diff', 'engine_step', '--root', unpacked(tmp_path / 'released', '0.6.0'))
    assert f'found     {found}  the source of 0.6.3 to 0.6.4' in done.out
    assert 'has no hash on record' in done.out


def test_diff_without_pip_or_network_says_what_to_do(patched):
    patched.write('lmdeploy/engine.py', EDITED)
    done = patched.cli('diff', 'engine_step')  # this environment has no pip
    assert done.code == 1
    assert 'pip cannot download lmdeploy==0.6.0 to compare with' in done.err
    assert done.err.endswith('unpack its wheel yourself and give the folder with --root')


def test_diff_of_an_unknown_patch(patched):
    done = patched.cli('diff', 'engine_stop')
    assert done == (1, '', "error: there is no patch 'engine_stop'; did you mean 'engine_step'? "
                    'Known: engine_step')


def test_the_table_in_a_readme_is_written_and_checked(patched, tmp_path):
    readme = tmp_path / 'README.md'
    readme.write_text('# Title\n<!-- patches:begin -->\nold\n<!-- patches:end -->\nrest\n')
    done = patched.cli('table', '--check', str(readme))
    assert done.code == 1 and '`make table` writes it' in done.err
    assert readme.read_text().count('old') == 1
    assert patched.cli('table', '--write', str(readme)) == (0, '', '')
    assert patched.cli('table', '--check', str(readme)) == (0, '', '')
    table = patched.cli('table').out
    assert readme.read_text() == ('# Title\n<!-- patches:begin -->\n' + table +
                                  '\n<!-- patches:end -->\nrest\n')
    row = '| engine_step | correctness | 0.6.0 | engine_step was asked for. | upstream has it |'
    assert row in readme.read_text()
    assert '| register | seam | all | It registers. |' in readme.read_text()


@pytest.mark.parametrize('text', ['', '<!-- patches:end -->\n<!-- patches:begin -->\n'])
def test_a_readme_without_a_place_for_the_table(patched, tmp_path, text):
    readme = tmp_path / 'README.md'
    readme.write_text(text)
    done = patched.cli('table', '--write', str(readme))
    assert done.code == 1 and 'lacks the lines <!-- patches:begin -->' in done.err
    readme.unlink()
    done = patched.cli('table', '--check', str(readme))
    assert done.code == 1 and 'cannot be read (No such file or directory)' in done.err


def test_an_editable_install_is_armed_too(patched, tmp_path):
    """Its own `.pth` adds the path, and sorts before ours."""
    source = tmp_path / 'source'
    source.mkdir()
    (patched.site / 'lmdeploy_ext').rename(source / 'lmdeploy_ext')
    patched.write('__editable___finder.py', f'import sys\nsys.path.append({str(source)!r})\n')
    patched.write('__editable__.lmdeploy_ext-0.1.0.pth', 'import __editable___finder\n')
    assert patched.cli('patch').code == 0
    assert patched.run(USE).out == 'patched'
