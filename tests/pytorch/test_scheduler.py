"""A decoding step after the last running request was cancelled."""
import pytest
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.paging.scheduler import Scheduler


@pytest.fixture
def scheduler():
    return Scheduler(SchedulerConfig(max_batches=2, max_session_len=64),
                     CacheConfig(max_batches=2, block_size=16, num_cpu_blocks=1,
                                 num_gpu_blocks=4))


def test_stock_ends_the_engine(scheduler):
    with pytest.raises(AssertionError):
        Scheduler._schedule_decoding.__wrapped__(scheduler)


def test_nobody_is_scheduled(scheduler):
    """The engine's loop takes no sequences for `NoRunningSeqs`, and goes on."""
    assert not scheduler.schedule(is_prefill=False).running
