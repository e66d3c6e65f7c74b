"""Every patch in `patches/`, in every order of import, arm and undo, with the LMDeploy installed.

New patches are covered by being there. One process for all: importing LMDeploy takes seconds.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmdeploy_ext.patching import Patch
from lmdeploy_ext.patching.catalogue import discover
from lmdeploy_ext.patching.releases import release_of
from lmdeploy_ext.patching.source import installed_root

RELEASE = release_of(installed_root())
ENTRIES = discover()
NEEDED = [e.name for e in ENTRIES if isinstance(e, Patch) and RELEASE in e.upstream]
NOT_NEEDED = [e.name for e in ENTRIES if isinstance(e, Patch) and RELEASE not in e.upstream]
SEAMS = [e.name for e in ENTRIES if not isinstance(e, Patch)]


@pytest.fixture(scope='module')
def orders():
    """What each order of `orders.py` reports."""
    env = {key: value for key, value in os.environ.items() if not key.startswith('LMDEPLOY_EXT_')}
    script = Path(__file__).with_name('orders.py')
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('name', NEEDED)
def test_arm_then_import_then_undo(orders, name):
    order = orders['arm_import_undo']
    assert order['states'][name] == 'applied'
    assert order['replaced'][name]


@pytest.mark.parametrize('name', NEEDED)
def test_import_then_arm_then_undo_then_arm_again(orders, name):
    order = orders['import_arm_undo_arm']
    assert order['states'][name] == order['states again'][name] == 'applied'
    assert order['replaced'][name] and order['replaced again'][name]
    assert not order['changed by undo'][name]


@pytest.mark.parametrize('name', NEEDED + NOT_NEEDED)
def test_none_replaces_nothing(orders, name):
    order = orders['import_arm_none']
    assert order['states'][name] == 'off'
    assert not order['replaced'][name]


@pytest.mark.parametrize('name', NOT_NEEDED)
def test_what_this_release_does_not_need(orders, name):
    for order in ('arm_import_undo', 'import_arm_undo_arm'):
        assert orders[order]['states'][name] == 'not needed'
        assert not orders[order]['replaced'][name]


@pytest.mark.parametrize('name', SEAMS)
def test_a_seam_runs_in_every_order(orders, name):
    assert [order['states'][name] for order in orders.values()] == ['applied'] * 3


def test_no_module_keeps_a_copy_of_what_is_out_of_force(orders):
    assert orders['import_arm_undo_arm']['stale'] == []  # stock, while patched
    assert orders['arm_import_undo']['stale'] == []  # patched, after undo
