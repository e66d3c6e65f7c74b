"""The lines of figures in the log."""
import asyncio
import logging

import pytest
from lmdeploy.utils import get_logger
from lmdeploy.vl.engine import ImageEncoder

from lmdeploy_ext.vision.feature_cache import CacheFigures
from lmdeploy_ext.vision.figures import FigureLog, VisionFigures, line
from lmdeploy_ext.vision.graph_figures import GraphFigures
from lmdeploy_ext.vision.scheduler_figures import SchedulerFigures
from lmdeploy_ext.vision.shared_work import SharedFigures
from tests.vision.test_service import CPU, images


@pytest.fixture
def messages():
    """What LMDeploy's log shows at the level of `--log-level INFO`."""
    logger, shown = get_logger('lmdeploy'), []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    level = logger.level
    logger.setLevel('INFO')
    logger.addHandler(handler)
    yield shown
    logger.removeHandler(handler)
    logger.setLevel(level)


def record(times):
    """Figures that are `times` as large as those of the first."""
    return VisionFigures(
        scheduler=SchedulerFigures(tiles=100 * times, images=20 * times, batches=10 * times,
                                   failed_images=times, cancelled_images=0, batches_by_tiles={},
                                   queue_seconds=0.2 * times, run_seconds=times, waiting_tiles=7),
        cache=CacheFigures(hits=5 * times, host_hits=0, misses=15 * times, spills=0, evictions=0,
                           expirations=0, entries=3, bytes=9 << 20, host_entries=0, host_bytes=0),
        shared=SharedFigures(computations=14 * times, shared=times),
        graphs=(GraphFigures(graphs=8, bytes=60 << 20, limit_bytes=0, captures=8,
                             capture_seconds=1, given_up=0, replays=30 * times,
                             replays_by_bucket={}, replayed_tiles=0, padded_tiles=2 * times,
                             eager_runs=10 * times, eager_tiles=0), ),
        waiting_feature_bytes=0)


@pytest.mark.parametrize('before, now', [(None, record(1)), (record(1), record(2)),
                                         (record(2), record(3))])
def test_a_line_tells_what_happened_since_the_one_before(before, now):
    assert line(before, now, seconds=2) == (
        'vision: 50.0 tiles/s, 20 images, 10.0 tiles a batch, 10.0 ms queued, 100.0 ms a batch, '
        'busy 50 %, 7 tiles wait; 1 images failed; cache 5 of 20 hit, 1 shared, 3 entries in 9 '
        'MiB; 30 of 40 runs by graph, 2 tiles of padding, 8 graphs in 60 MiB')


def test_a_line_is_due_after_so_many_seconds(messages):
    now, records = [0.0], iter([record(1), record(3)])
    log = FigureLog(lambda: next(records), 60, lambda: now[0])
    for now[0], written in ((59.9, False), (60.0, True), (61.0, False), (119.0, False),
                            (120.0, True)):
        assert log.written_if_due() == written
    assert ['20 images' in messages[0], '40 images' in messages[1], len(messages)] == [1, 1, 2]


def test_lmdeploys_log_shows_them(checkpoint, messages, monkeypatch):
    monkeypatch.setenv('LMDEPLOY_EXT_VISION_LOG_SECONDS', '0.001')
    encoder = ImageEncoder(checkpoint, None, CPU)
    assert 'vision: eager in torch.float32 on cpu, up to 4 tiles in a batch' in messages
    asyncio.run(encoder.async_infer(images(2)))
    assert any(' 2 images, ' in message and 'cache 0 of 2 hit' in message for message in messages)


def test_nothing_is_counted_where_nobody_sees_it(messages):
    get_logger('lmdeploy').setLevel('ERROR')
    log = FigureLog(lambda: pytest.fail('counted'), 0.001, iter(range(9)).__next__)
    assert not log.written_if_due() and not messages
