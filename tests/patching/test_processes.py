"""Worker processes of an environment that `make patch` has patched."""
import pytest

STEP = 'return lambda self, n=1: "patched"'
PARENT = '''
import multiprocessing
import sys


def child():
    from lmdeploy.engine import Engine
    print(Engine().step(), flush=True)


if __name__ == '__main__':
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
'''
METHODS = ('fork', 'spawn', 'forkserver')


@pytest.fixture
def patched(sandbox):
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP)
    assert sandbox.cli('patch').code == 0
    return sandbox


def run(sandbox, method, **env):
    return sandbox.run(PARENT.replace('sys.argv[1]', repr(method)), **env)


@pytest.mark.parametrize('method', METHODS)
def test_a_worker_process_is_patched(patched, method):
    assert run(patched, method) == (0, 'patched', '')
    assert patched.cli('unpatch').code == 0
    assert run(patched, method) == (0, 'stock', '')


@pytest.mark.parametrize('method', METHODS)
def test_a_worker_process_that_cannot_be_patched_fails(patched, method):
    engine = patched.site / 'lmdeploy/engine.py'
    engine.write_text(engine.read_text().replace("return 'stock'", "return 'edited'"))
    done = run(patched, method)
    assert done.code == 1 and done.out == ''
    assert 'engine_step: lmdeploy.engine:Engine.step of LMDeploy 0.6.0 has drifted' in done.err


@pytest.mark.parametrize('method', METHODS)
def test_a_script_that_arms_itself_arms_its_workers(patched, method):
    assert patched.cli('unpatch').code == 0
    done = patched.run('import lmdeploy_ext.autopatch\n' +
                       PARENT.replace('sys.argv[1]', repr(method)))
    assert done == (0, 'patched', '')
