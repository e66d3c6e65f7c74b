"""Applying, undoing and reloading, in processes of their own with a made-up LMDeploy."""
import pytest

STEP = '''
    def step(self, n=1):
        return 'patched ' + original(self, n)
    return step
'''
START = '''
    def start(model):
        return 'patched ' + original(model)
    return start
'''
ORDERS = {
    'arm, import': ('patched', '''
        import lmdeploy_ext.autopatch
        import lmdeploy.api
    '''),
    'import, arm': ('patched', '''
        import lmdeploy.api
        import lmdeploy_ext.autopatch
    '''),
    'import, arm twice': ('patched', '''
        import lmdeploy.api
        import lmdeploy_ext.autopatch
        lmdeploy_ext.autopatch.arm()
    '''),
    'arm, import, undo': ('stock', '''
        import lmdeploy_ext.autopatch
        import lmdeploy.api
        from lmdeploy_ext.patching import unapply_all
        unapply_all()
    '''),
    'arm, undo, import': ('stock', '''
        import lmdeploy_ext.autopatch
        from lmdeploy_ext.patching import unapply_all
        unapply_all()
        import lmdeploy.api
    '''),
    'import, arm, undo': ('stock', '''
        import lmdeploy.api
        import lmdeploy_ext.autopatch
        from lmdeploy_ext.patching import unapply_all
        unapply_all()
    '''),
    'import, arm, undo, arm': ('patched', '''
        import lmdeploy.api
        import lmdeploy_ext.autopatch
        from lmdeploy_ext.patching import arm, unapply_all
        unapply_all()
        arm()
    '''),
    'import half, arm, import the rest': ('patched', '''
        import lmdeploy
        import lmdeploy_ext.autopatch
        import lmdeploy.api
    '''),
    'import': ('stock', 'import lmdeploy.api'),
}  # yapf: disable
REPORT = '''
from lmdeploy.api import start
from lmdeploy.engine import Engine
print(start('m').split()[0], Engine().step().split()[0])
'''


def outdent(code):
    return '\n'.join(line.strip() for line in code.strip().splitlines()) + '\n'


@pytest.fixture
def patched(sandbox):
    sandbox.patch('engine_step', 'lmdeploy.engine:Engine.step', STEP)
    sandbox.patch('engine_start', 'lmdeploy.engine:start', START)
    return sandbox


@pytest.mark.parametrize('order', ORDERS)
def test_every_order_of_import_arm_and_undo(patched, order):
    expected, code = ORDERS[order]
    assert patched.run(outdent(code) + REPORT) == (0, f'{expected} {expected}', '')


def test_none_applies_nothing(patched):
    patched.seam('register', 'lmdeploy.engine', 'module.REGISTERED = True')
    done = patched.run('import lmdeploy_ext.autopatch\n' + REPORT + '''
import lmdeploy.engine
from lmdeploy_ext.patching import status
print(lmdeploy.engine.REGISTERED, [row['state'] for row in status()])
''', LMDEPLOY_EXT_PATCHES='none')
    assert done == (0, "stock stock\nTrue ['off', 'off', 'applied']", '')


def test_undo_brings_back_the_identical_objects(patched):
    done = patched.run('''
        import lmdeploy.api, lmdeploy.engine
        # not as globals of this module: those follow, as a notebook's do
        before = [lmdeploy.engine.Engine.step, lmdeploy.engine.start]
        import lmdeploy_ext.autopatch
        from lmdeploy_ext.patching import unapply_all
        assert lmdeploy.engine.Engine.step.__wrapped__ is before[0]
        assert lmdeploy.api.start is lmdeploy.engine.start is not before[1]
        unapply_all()
        assert lmdeploy.engine.Engine.step is before[0]
        assert lmdeploy.api.start is lmdeploy.engine.start is before[1]
    ''')
    assert done == (0, '', '')


def test_static_methods_class_methods_and_properties(sandbox):
    sandbox.write('lmdeploy/kinds.py', '''
class Kinds:

    @staticmethod
    def static(x):
        return 'stock ' + x

    @classmethod
    def of_class(cls, x):
        return f'stock {cls.__name__} {x}'

    @property
    def size(self):
        """How large."""
        return self._size

    @size.setter
    def size(self, value):
        self._size = f'set {value}'
    alias = static
''')
    for name, arguments in {'static': 'x', 'of_class': 'cls, x', 'size': 'self'}.items():
        sandbox.patch(f'kinds_{name}', f'lmdeploy.kinds:Kinds.{name}',
                      f'return lambda {arguments}: "new " + original({arguments})')
    done = sandbox.run('''
        import lmdeploy.kinds
        Kinds = lmdeploy.kinds.Kinds
        before = dict(vars(Kinds))
        import lmdeploy_ext.autopatch
        from lmdeploy_ext.patching import unapply_all
        kinds = Kinds()
        kinds.size = 1
        print(Kinds.static('a'), Kinds().static('a'), Kinds.alias('a'), sep=', ')
        print(Kinds.of_class('b'), Kinds().of_class('b'), kinds.size, sep=', ')
        print(type(vars(Kinds)['static']).__name__, Kinds.size.__doc__)
        unapply_all()
        print(all(vars(Kinds)[name] is before[name] for name in before))
    ''')
    assert done == (0, 'new stock a, new stock a, new stock a\n'
                    'new stock Kinds b, new stock Kinds b, new set 1\n'
                    'staticmethod How large.\nTrue', '')


def test_a_class_and_what_is_nested_in_one(sandbox):
    sandbox.write('lmdeploy/nest.py', '''
class Whole:
    def name(self):
        return 'stock'


class Outer:
    class Inner:
        def name(self):
            return 'stock'
''')
    sandbox.write('lmdeploy/copies.py', 'from lmdeploy.nest import Whole\n')
    sandbox.patch('whole', 'lmdeploy.nest:Whole', '''
        class Replacement(original):
            def name(self):
                return 'new ' + super().name()
        return Replacement
    ''')
    sandbox.patch('inner', 'lmdeploy.nest:Outer.Inner.name',
                  'return lambda self: "new " + original(self)')
    for first, second in [('import lmdeploy_ext.autopatch', 'import lmdeploy.copies'),
                          ('import lmdeploy.copies', 'import lmdeploy_ext.autopatch')]:
        done = sandbox.run(f'''
            {first}
            {second}
            import pickle
            from lmdeploy.copies import Whole
            from lmdeploy.nest import Outer
            print(Whole().name(), Outer.Inner().name(), Whole.__qualname__, Whole.__module__)
            print(type(pickle.loads(pickle.dumps(Whole()))) is Whole)
        ''')
        assert done == (0, 'new stock new stock Whole lmdeploy.nest\nTrue', '')


def test_names_that_were_copied_are_found(patched):
    patched.write('lmdeploy/copies.py', '''
from lmdeploy.engine import Engine, start as begin


class Holder:
    start = staticmethod(begin)
    begin = begin
    class Nested:
        begin = begin
    step = Engine.step
''')
    # a copy that is made while the module is still running
    patched.write('lmdeploy/engine.py', (patched.site / 'lmdeploy/engine.py').read_text() +
                  'import lmdeploy.copies\n')
    code = '''
        import lmdeploy.copies
        Holder = lmdeploy.copies.Holder
        print(lmdeploy.copies.begin('m'), Holder.begin('m'), Holder.Nested.begin('m'),
              Holder().step(), sep=', ')
    '''
    expected = ', '.join(['patched stock m'] * 3 + ['patched stock'])
    assert patched.run('import lmdeploy_ext.autopatch\n' + outdent(code)) == (0, expected, '')


def test_a_notebook_keeps_no_stock_names(patched):
    done = patched.run('''
        from lmdeploy.engine import start
        import lmdeploy_ext.autopatch
        print(start('m'))
        lmdeploy_ext.patching.unapply_all()
        print(start('m'))
    ''')
    assert done == (0, 'patched stock m\nstock m', '')


def test_names_copied_from_a_patched_module_are_undone_too(patched):
    done = patched.run('''
        import lmdeploy_ext.autopatch
        from lmdeploy.engine import start
        import lmdeploy.api
        lmdeploy_ext.patching.unapply_all()
        print(start('m'), lmdeploy.api.start('m'))
    ''')
    assert done == (0, 'stock m stock m', '')


def test_what_other_code_has_put_there_since_stays(patched):
    done = patched.run('''
        import lmdeploy_ext.autopatch
        import lmdeploy.engine
        from lmdeploy_ext.patching import status, unapply_all
        lmdeploy.engine.start = len
        print({row['name']: row['state'] for row in status()})
        unapply_all()
        print(lmdeploy.engine.start is len)
    ''')
    assert done == (0, "{'engine_start': 'off', 'engine_step': 'applied'}\nTrue", '')


def test_a_reloaded_module_is_patched_again_and_undone(patched):
    patched.seam('count', 'lmdeploy.engine', 'print("registers")')
    done = patched.run('''
        import importlib
        import lmdeploy_ext.autopatch
        import lmdeploy.api, lmdeploy.engine
        importlib.reload(lmdeploy.engine)
        Engine = lmdeploy.engine.Engine
        print(Engine().step(), lmdeploy.engine.start('m'), lmdeploy.api.start('m'), sep=', ')
        lmdeploy_ext.patching.unapply_all()
        print(Engine().step(), lmdeploy.engine.start('m'), lmdeploy.api.start('m'), sep=', ')
    ''')
    assert done == (0, 'registers\nregisters\npatched stock, patched stock m, patched stock m\n'
                    'stock, stock m, stock m', '')


def test_a_module_imported_anew_is_patched_again(patched):
    done = patched.run('''
        import sys
        import lmdeploy_ext.autopatch
        import lmdeploy.engine
        del sys.modules['lmdeploy.engine']
        import lmdeploy.engine
        print(lmdeploy.engine.start('m'), lmdeploy.engine.Engine().step(), sep=', ')
        print([row['state'] for row in lmdeploy_ext.patching.status()])
    ''')
    assert done == (0, "patched stock m, patched stock\n['applied', 'applied']", '')


def test_a_failed_first_import_is_followed_by_a_patched_second_one(patched):
    engine = (patched.site / 'lmdeploy/engine.py').read_text()
    patched.write('lmdeploy/engine.py', engine + 'import builtins\nbuiltins.step_or_fail()\n')
    done = patched.run('''
        import builtins
        import lmdeploy_ext.autopatch
        try:
            import lmdeploy.engine
        except AttributeError as error:
            print(error)
        builtins.step_or_fail = lambda: None
        import lmdeploy.engine
        print(lmdeploy.engine.start('m'), lmdeploy.engine.Engine().step(), sep=', ')
    ''')
    assert done.out.splitlines()[1:] == ['patched stock m, patched stock']


def test_a_seam_registers_once_and_gets_the_module(sandbox):
    sandbox.seam('register', 'lmdeploy.engine', 'print("registers with", module.__name__)')
    done = sandbox.run('''
        import lmdeploy.engine
        from lmdeploy_ext.patching import arm, status, unapply_all
        print(status()[0]['state'])
        arm()
        print(status()[0]['state'])
        unapply_all()
        arm()
    ''')
    assert done == (0, 'off\nregisters with lmdeploy.engine\napplied', '')


def test_each_applied_patch_is_one_info_line(patched):
    done = patched.run('''
        import logging
        logging.basicConfig(level='INFO', format='%(name)s %(levelname)s %(message)s')
        import lmdeploy_ext.autopatch
        import lmdeploy.engine
    ''')
    assert done.err.splitlines() == [
        'lmdeploy_ext INFO patch engine_start (correctness) applied to lmdeploy.engine:start',
        'lmdeploy_ext INFO patch engine_step (correctness) applied to lmdeploy.engine:Engine.step',
    ]


@pytest.mark.parametrize('body, complaint', [
    ('return None', 'patch bad: returned a NoneType; return a new function'),
    ('return lambda self: 1', 'patch bad: the replacement takes (self)'),
    ('raise RuntimeError("no such thing")', 'no such thing'),
])
@pytest.mark.parametrize('first, second', [('lmdeploy_ext.autopatch', 'lmdeploy.engine'),
                                           ('lmdeploy.engine', 'lmdeploy_ext.autopatch')])
def test_a_patch_that_does_not_fit_leaves_nothing(sandbox, body, complaint, first, second):
    sandbox.patch('bad', 'lmdeploy.engine:Engine.step', body)
    sandbox.patch('a_good_one', 'lmdeploy.engine:start', START)
    done = sandbox.run(f'''
        import {first}
        try:
            import {second}
        except Exception as error:
            print(isinstance(error, ImportError), error)
        import sys
        if 'lmdeploy.engine' in sys.modules:
            print(sys.modules['lmdeploy.engine'].start('m'))
    ''')
    assert done.code == 0 and done.out.startswith(f'False {complaint}')
    assert 'patched' not in done.out


@pytest.mark.parametrize('line, complaint', [
    ('del start', 'bad: lmdeploy.engine:start is in the source, but start is not there'),
    ('start = 3', 'bad: lmdeploy.engine:start is a int; functions, methods, properties'),
])
def test_a_target_that_is_not_there_at_run_time_is_refused(sandbox, line, complaint):
    engine = (sandbox.site / 'lmdeploy/engine.py').read_text()
    sandbox.write('lmdeploy/engine.py', f'{engine}\n{line}\n')
    sandbox.patch('bad', 'lmdeploy.engine:start', START)
    done = sandbox.run('import lmdeploy_ext.autopatch\nimport lmdeploy.engine')
    assert done.code == 1 and complaint in done.err.splitlines()[-1]
