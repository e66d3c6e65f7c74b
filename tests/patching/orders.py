"""Run every patch through one order of import, arm and undo; print what happened as JSON.

Usage: python orders.py. Heavy packages are imported once, then each order runs in a fork.
"""
import importlib
import json
import os
import sys
import types

from lmdeploy_ext.patching import Patch, arm, status, unapply_all
from lmdeploy_ext.patching.aliases import rebind  # noqa: F401  before anything is forked
from lmdeploy_ext.patching.catalogue import discover

ENTRIES = discover()


def import_all():
    """Import the module of every patch and seam that this release has."""
    for name in sorted({entry.module for entry in ENTRIES}):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise


def targets():
    """Patch name -> what stands at its target, as the class or module holds it; None if absent."""
    found = {}
    for entry in ENTRIES:
        if isinstance(entry, Patch):
            value = sys.modules.get(entry.module)
            for name in entry.target.partition(':')[2].split('.'):
                value = None if value is None else vars(value).get(name)
            found[entry.name] = value
    return found


def states():
    return {row['name']: row['state'] for row in status()}


def holders(objects):
    """The names in LMDeploy's modules that are bound to one of these objects."""
    wanted = {id(value) for value in objects}
    return [f'{module}.{name}' for module, loaded in list(sys.modules.items())
            if module.split('.')[0] == 'lmdeploy' and isinstance(loaded, types.ModuleType)
            for name, value in list(vars(loaded).items()) if id(value) in wanted]


def different(one, other):
    return {name: one[name] is not other[name] for name in one}


def applied_in(found):
    return [value for name, value in found.items() if states()[name] == 'applied']


def arm_import_undo():
    arm()
    import_all()
    patched, applied, replacements = targets(), states(), applied_in(targets())
    unapply_all()
    return {
        'states': applied,
        'replaced': different(patched, targets()),
        'stale': holders(replacements),
    }


def import_arm_undo_arm():
    import_all()
    stock = targets()
    arm()
    patched, applied, stale = targets(), states(), holders(applied_in(stock))
    unapply_all()
    restored = targets()
    arm()
    return {
        'states': applied,
        'replaced': different(stock, patched),
        'stale': stale,
        'changed by undo': different(stock, restored),
        'replaced again': different(stock, targets()),
        'states again': states(),
    }


def import_arm_none():
    import_all()
    stock = targets()
    os.environ['LMDEPLOY_EXT_PATCHES'] = 'none'
    arm()
    return {'states': states(), 'replaced': different(stock, targets())}


def in_a_fork(order):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, 'w') as pipe:
            pipe.write(json.dumps(order()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or 'null')


if __name__ == '__main__':
    for package in ('torch', 'transformers', 'fastapi', 'numpy', 'PIL.Image'):
        importlib.import_module(package)
    print(json.dumps({order.__name__: in_a_fork(order)
                      for order in (arm_import_undo, import_arm_undo_arm, import_arm_none)}))
