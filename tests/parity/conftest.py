"""Checkpoints of random weights and the loop that engines run in. LMDeploy is patched here."""
import pytest

import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint
from tests.parity.loops import loop  # noqa: F401  a fixture

register()


@pytest.fixture(scope='package', autouse=True)
def as_upstream():
    """References know upstream's tiles and pixels; what differs by intention is tested elsewhere.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv('LMDEPLOY_EXT_TILES', 'stock')
        patched.setenv('LMDEPLOY_EXT_PIXELS', 'upstream')
        yield


@pytest.fixture(scope='session')
def checkpoint(tmp_path_factory):
    """Folder of a checkpoint of the given shape, written once. Its name says nothing about it."""
    folders = {}

    def folder(shape='tiny'):
        if shape not in folders:
            folders[shape] = str(tmp_path_factory.mktemp('checkpoints') / f'model-{shape}')
            write_checkpoint(folders[shape], shape, dtype='float32', seed=7)
        return folders[shape]

    return folder


@pytest.fixture
def stock(monkeypatch):
    """Puts an original back for one test: `stock(Class, 'method')`."""

    def restore(owner, name):
        monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)

    return restore
