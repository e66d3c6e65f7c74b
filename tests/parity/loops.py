"""Event loops for tests of what runs in one."""
import asyncio

import pytest


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
