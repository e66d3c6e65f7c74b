"""What stops `import lmdeploy`, and what is said: one line, and the process fails."""
import pytest

from tests.patching.sandbox import Sandbox

STEP = 'return lambda self, n=1: "patched"'
IMPORTS = {
    'armed first': 'import lmdeploy_ext.autopatch\nimport lmdeploy',
    'armed late': 'import lmdeploy\nimport lmdeploy_ext.autopatch',
}


@pytest.fixture
def patched(sandbox):
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP)
    return sandbox


def last_line(done):
    assert done.code == 1
    return done.err.splitlines()[-1]


@pytest.mark.parametrize('order', IMPORTS)
def test_source_that_has_drifted(patched, order):
    engine = patched.site / 'lmdeploy/engine.py'
    engine.write_text(engine.read_text().replace("return 'stock'", "return 'edited'"))
    line = last_line(patched.run(IMPORTS[order]))
    assert line.startswith('lmdeploy_ext.patching.errors.PatchImportError: patch engine_step: '
                           'lmdeploy.engine:Engine.step of LMDeploy 0.6.0 has drifted: found ')
    assert line.endswith('; `python -m lmdeploy_ext.patching diff engine_step` shows the '
                         'difference, LMDEPLOY_EXT_PATCHES=-engine_step runs without')
    code = IMPORTS[order] + '\nimport lmdeploy.engine\nprint(lmdeploy.engine.Engine().step())'
    for setting in ('-engine_step', 'none', 'cpu'):
        assert patched.run(code, LMDEPLOY_EXT_PATCHES=setting) == (0, 'edited', '')


def test_it_is_an_import_error_and_a_second_try_is_refused_too(patched):
    engine = patched.site / 'lmdeploy/engine.py'
    engine.write_text(engine.read_text().replace("return 'stock'", "return 'edited'"))
    done = patched.run('''
        import lmdeploy_ext.autopatch
        for _ in range(2):
            try:
                import lmdeploy.engine
            except ImportError as error:
                print('refused', 'has drifted' in str(error))
    ''')
    assert done == (0, 'refused True\nrefused True', '')


def test_several_have_drifted(patched):
    patched.patch('start_again', 'lmdeploy.engine:start', 'return lambda model: "patched"')
    engine = patched.site / 'lmdeploy/engine.py'
    engine.write_text(engine.read_text().replace("'stock", "'edited"))
    line = last_line(patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy'))
    assert '(also drifted: start_again)' in line
    assert line.endswith('LMDEPLOY_EXT_PATCHES=-engine_step,-start_again runs without')


def test_a_guard_that_has_drifted(sandbox):
    guards = {'lmdeploy.engine:start': {'0123456789abcdef': '0.6.0'}}
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP, guards=guards)
    line = last_line(sandbox.run('import lmdeploy_ext.autopatch\nimport lmdeploy'))
    assert 'patch engine_step: lmdeploy.engine:start of LMDeploy 0.6.0 has drifted' in line
    assert 'expected 0123456789abcdef' in line


def test_a_symbol_that_is_gone(patched):
    patched.write('lmdeploy/engine.py', 'def start(model): pass\n')
    line = last_line(patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy'))
    assert 'found Engine.step is not defined in' in line


def test_a_misspelt_name(patched):
    line = last_line(patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy',
                                 LMDEPLOY_EXT_PATCHES='engine_stop'))
    assert line.endswith("LMDEPLOY_EXT_PATCHES names 'engine_stop', which does not exist; did you "
                         "mean 'engine_step'? Known: all, correctness, cpu, engine_step, none, "
                         "speed")


@pytest.mark.parametrize('word', ['all', 'none'])
def test_what_cannot_be_left_out(patched, word):
    line = last_line(patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy',
                                 LMDEPLOY_EXT_PATCHES=f'-{word}'))
    assert line.endswith(f"LMDEPLOY_EXT_PATCHES leaves out '{word}'; leave out groups or patches, "
                         "or set it to none for no patch at all")


def test_a_wrong_setting(patched):
    line = last_line(patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy',
                                 LMDEPLOY_EXT_CPU_THREADS='many'))
    assert "LMDEPLOY_EXT_CPU_THREADS='many' is not a positive int" in line


@pytest.mark.parametrize('setting', ['all', 'none'])
def test_another_release(tmp_path, setting):
    sandbox = Sandbox(tmp_path / 'venv', release='0.6.5')
    sandbox.write('lmdeploy/__init__.py', 'raise RuntimeError("its body must not run")\n')
    line = last_line(sandbox.run('import lmdeploy_ext.autopatch\nimport lmdeploy',
                                 LMDEPLOY_EXT_PATCHES=setting))
    assert line.endswith('LMDeploy 0.6.5 is not supported: lmdeploy-ext patches 0.6.0 to 0.6.4; '
                         'install one of those, or run `make unpatch` to use LMDeploy 0.6.5 as '
                         'it is')


def test_a_release_that_needs_no_patch(tmp_path):
    sandbox = Sandbox(tmp_path / 'venv', release='0.6.4')
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP, releases='0.6.0 to 0.6.3',
                  upstream={'0123456789abcdef': '0.6.0 to 0.6.3'})
    done = sandbox.run('''
        import lmdeploy_ext.autopatch
        from lmdeploy.engine import Engine
        print(Engine().step(), lmdeploy_ext.patching.status()[0]['state'])
    ''')
    assert done == (0, 'stock not needed', '')


def test_no_lmdeploy_at_all(sandbox):
    for path in (sandbox.site / 'lmdeploy').iterdir():
        path.unlink()
    (sandbox.site / 'lmdeploy').rmdir()
    done = sandbox.cli('patch')
    assert done == (1, '', 'error: LMDeploy is not installed for this Python; run `make setup`, '
                    'or `pip install lmdeploy==0.6.0`')


def test_nothing_of_lmdeploy_has_run_when_it_is_refused(patched):
    patched.write('lmdeploy/__init__.py', 'print("the body runs")\n')
    done = patched.run('import lmdeploy_ext.autopatch\nimport lmdeploy', LMDEPLOY_EXT_PATCHES='x')
    assert done.code == 1 and done.out == ''


def test_a_state_for_each_situation(patched):
    patched.patch('start_again', 'lmdeploy.engine:start', 'return lambda model: "patched"',
                  group='speed')
    code = '''
        from lmdeploy_ext.patching import status, settings_in_force, arm
        print([row['state'] for row in status()], settings_in_force()['armed'])
        arm()
        print([row['state'] for row in status()], settings_in_force()['patches'])
        import lmdeploy.engine
        print([row['state'] for row in status()])
    '''
    done = patched.run(code, LMDEPLOY_EXT_PATCHES='correctness')
    assert done.out.splitlines() == [
        "['off', 'off'] False", "['ready', 'off'] correctness", "['applied', 'off']"
    ]
    engine = patched.site / 'lmdeploy/engine.py'
    engine.write_text(engine.read_text().replace("return 'stock'", "return 'edited'"))
    done = patched.run('''
        from lmdeploy_ext.patching import status
        print([row['state'] for row in status()])
    ''')
    assert done == (0, "['drifted', 'off']", '')
