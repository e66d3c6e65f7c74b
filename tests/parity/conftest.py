"""Checkpoints of random weights and the loop that engines run in. LMDeploy is patched here."""
import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy

import asyncio

import pytest

from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint

register()


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
def loop():
    """An event loop of the test's own, current while the test runs, as `pipeline` wants it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    asyncio.set_event_loop(None)
