"""LMDeploy is patched in this process; a checkpoint to load."""
import pytest

import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
from lmdeploy_ext.models.checkpoint import write_checkpoint


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """A tiny InternVL2."""
    folder = tmp_path_factory.mktemp('service') / 'model'
    write_checkpoint(folder, 'tiny', dtype='float32', seed=7)
    return str(folder)
