"""What the import hook leaves as it was, and several threads."""
import pytest

STEP = 'return lambda self, n=1: "patched"'


@pytest.fixture
def patched(sandbox):
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP)
    return sandbox


def test_looking_a_module_up_uses_nothing_up(patched):
    done = patched.run('''
        import importlib.util
        import sys
        import lmdeploy_ext.autopatch
        assert importlib.util.find_spec('lmdeploy').origin.endswith('lmdeploy/__init__.py')
        assert 'lmdeploy' not in sys.modules
        assert importlib.util.find_spec('lmdeploy.engine').origin.endswith('engine.py')
        assert importlib.util.find_spec('lmdeploy.gone') is None
        assert 'lmdeploy.engine' not in sys.modules
        from lmdeploy.engine import Engine
        print(Engine().step())
    ''')
    assert done == (0, 'patched', '')


def test_a_module_has_the_loader_it_has_without_us(patched):
    patched.write('lmdeploy/data.txt', 'some data')
    done = patched.run('''
        import importlib.resources
        import importlib.util
        import inspect
        import pkgutil
        import lmdeploy_ext.autopatch
        found = importlib.util.find_spec('lmdeploy.engine').loader
        print(found.get_source('lmdeploy.engine')[:13].strip())
        print(found.is_package('lmdeploy.engine'))
        print(found.get_data(found.get_filename())[:13].decode().strip())
        import lmdeploy.engine
        print(type(lmdeploy.engine.__loader__).__name__, type(lmdeploy.__spec__.loader).__name__)
        print(pkgutil.get_data('lmdeploy', 'data.txt').decode())
        print(importlib.resources.files('lmdeploy').joinpath('data.txt').read_text())
        print([info.name for info in pkgutil.iter_modules(lmdeploy.__path__)])
        print(inspect.getsource(lmdeploy.engine.start).split('(')[0])
    ''')
    assert done == (0, 'class Engine\nFalse\nclass Engine\nSourceFileLoader SourceFileLoader\n'
                    "some data\nsome data\n['api', 'engine', 'version']\ndef start", '')


def test_a_module_that_another_thread_imports_while_the_checks_go_on(patched):
    """importlib shows that thread a package that has not run, where waiting would deadlock."""
    done = patched.run('''
        import importlib.util
        import sys
        import lmdeploy_ext.autopatch
        spec = importlib.util.find_spec('lmdeploy')
        sys.modules['lmdeploy'] = importlib.util.module_from_spec(spec)
        from lmdeploy.engine import Engine
        print(Engine().step())
    ''')
    assert done == (0, 'patched', '')


def test_other_modules_are_none_of_our_business(patched):
    patched.write('lmdeploy_tools.py', 'name = "lmdeploy_tools"\n')
    done = patched.run('''
        import importlib.util
        import sys
        import lmdeploy_ext.autopatch
        finder = sys.meta_path[0]
        print(type(finder).__name__, finder.find_spec('json'), finder.find_spec('lmdeploy_tools'))
        import lmdeploy_tools
        print('lmdeploy' in sys.modules, 'lmdeploy_ext.patching.session' in sys.modules)
    ''')
    assert done == (0, 'PatchFinder None None\nFalse False', '')


def test_arming_starts_no_check_and_is_fast(patched):
    patched.cli('patch')
    code = '''
        import sys, time
        for name in [name for name in sys.modules if name.startswith('lmdeploy_ext')]:
            del sys.modules[name]
        start = time.perf_counter()
        import lmdeploy_ext.autopatch
        print((time.perf_counter() - start) * 1000)
    '''
    warm = {'PYTHONDONTWRITEBYTECODE': ''}
    milliseconds = min(float(patched.run(code, **warm).out) for _ in range(5))
    assert milliseconds < 5


def test_twice_armed_is_in_the_import_system_once(patched):
    done = patched.run('''
        import sys, threading
        from lmdeploy_ext.patching import arm, unapply_all
        threads = [threading.Thread(target=arm) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        names = [type(finder).__name__ for finder in sys.meta_path]
        print(names.count('PatchFinder'))
        unapply_all()
        unapply_all()
        print('PatchFinder' in [type(finder).__name__ for finder in sys.meta_path])
    ''')
    assert done == (0, '1\nFalse', '')


def test_threads_that_import_at_once_all_see_the_patch(sandbox):
    names = [f'part{index}' for index in range(8)]
    for name, following in zip(names, names[1:] + names[:1]):
        sandbox.write(f'lmdeploy/{name}.py',
                      f'import time\ntime.sleep(0.01)\n\n\ndef f():\n    return "stock {name}"\n')
        # what a patch imports may be waiting for a patch in another thread
        sandbox.patch(f'{name}_f', f'lmdeploy.{name}:f', f'''
            import lmdeploy.{following}
            return lambda: 'patched ' + original()
        ''')
    done = sandbox.run(f'''
        import importlib, threading
        import lmdeploy_ext.autopatch
        names, seen = {names!r}, []
        def work(name):
            seen.append(importlib.import_module('lmdeploy.' + name).f())
        threads = [threading.Thread(target=work, args=(name,)) for name in names * 2]
        [thread.start() for thread in threads]
        [thread.join(20) for thread in threads]
        print(len(seen), all(text.startswith('patched stock part') for text in seen))
    ''')
    assert done == (0, '16 True', '')
