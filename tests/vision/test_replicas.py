"""Tiles dealt to replicas, here on the CPU; streams and copies: tests/gpu/test_replicas.py."""
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vision.backend import VisionBackend, check, fill, run
from lmdeploy_ext.vision.replicas import ReplicatedBackend, deal

SIDE, TOKENS, HIDDEN = 4, 2, 3


class Named(VisionBackend):
    """Features: the mean of a tile, everywhere. Remembers batches and threads; may fail, or wait
    for another."""
    side, tokens, hidden = SIDE, TOKENS, HIDDEN
    device = torch.device('cpu')

    def __init__(self, max_tiles=8, dtype=torch.float32, error=None, meeting=None):
        self.max_tiles, self.dtype = max_tiles, dtype
        self.error, self.meeting = error, meeting
        self.batches, self.threads, self.ended = [], set(), 0

    def encode(self, tiles, out):
        check(self, tiles, out)
        self.batches.append(len(tiles))
        self.threads.add(threading.get_ident())
        if self.meeting is not None:
            self.meeting.wait(timeout=30)
        if self.error is not None:
            raise self.error
        fill(out, tiles.float().mean((1, 2, 3))[:, None, None].expand(-1, TOKENS, HIDDEN))
        self.ended += 1


def some_tiles(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)


def expected(tiles):
    return run(Named(len(tiles)), tiles)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_every_tile_gets_its_own_features_in_order(limits, data):
    replicas = [Named(limit) for limit in limits]
    backend = ReplicatedBackend(replicas)
    assert backend.max_tiles == sum(limits)
    for seed in range(2):
        tiles, cuts = some_tiles(data.draw(st.integers(1, sum(limits))), seed), []
        while sum(cuts) < len(tiles):
            cuts.append(data.draw(st.integers(1, len(tiles) - sum(cuts))))
        out = [torch.full((cut, TOKENS, HIDDEN), float('nan')) for cut in cuts]
        backend.encode(tiles, out)
        assert torch.equal(torch.cat(out), expected(tiles))


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.data())
def test_a_deal_is_whole_within_limits_and_as_equal_as_they_allow(limits, data):
    tiles = data.draw(st.integers(1, sum(limits)))
    counts = deal(tiles, limits)
    assert sum(counts) == tiles
    assert all(0 <= count <= limit for count, limit in zip(counts, limits))
    if tiles > 2:
        # whoever has at least two tiles less than another could not take one more
        assert all(count == limit or count >= max(counts) - 1
                   for count, limit in zip(counts, limits))


@pytest.mark.parametrize('tiles, limits, counts', [
    (1, (8, 8), [1, 0]),
    (2, (8, 8), [2, 0]),
    (2, (1, 8), [1, 1]),
    (3, (8, 8), [2, 1]),
    (3, (8, 8, 8, 8), [1, 1, 1, 0]),
    (64, (64, 64), [32, 32]),
    (13, (16, 16, 16, 16), [4, 3, 3, 3]),
    (12, (4, 8), [4, 8]),
])
def test_deals(tiles, limits, counts):
    assert deal(tiles, limits) == counts


def test_one_or_two_tiles_stay_on_the_primary_whose_work_is_the_callers():
    replicas = [Named(), Named()]
    backend = ReplicatedBackend(replicas)
    for count in (1, 2):
        run(backend, some_tiles(count))
    assert replicas[0].batches == [1, 2] and not replicas[1].batches
    run(backend, some_tiles(4))
    assert (replicas[0].batches, replicas[1].batches) == ([1, 2, 2], [2])
    assert replicas[0].threads == {threading.get_ident()}


def test_replicas_work_at_the_same_time_each_in_its_one_thread():
    meeting = threading.Barrier(3)  # broken, and so an error, unless all three are at work at once
    replicas = [Named(meeting=meeting) for _ in range(3)]
    backend = ReplicatedBackend(replicas)
    for seed in range(3):
        tiles = some_tiles(9, seed)
        assert torch.equal(run(backend, tiles), expected(tiles))
    assert all(len(replica.threads) == 1 for replica in replicas)
    assert len(set.union(*(replica.threads for replica in replicas))) == 3


@pytest.mark.parametrize('failing', [0, 1, 2])
def test_a_failure_is_raised_when_the_others_have_ended_and_harms_no_later_batch(failing):
    replicas = [Named() for _ in range(3)]
    backend = ReplicatedBackend(replicas)
    replicas[failing].error = RuntimeError('no kernel image')
    with pytest.raises(RuntimeError, match='no kernel image'):
        run(backend, some_tiles(6))
    assert [replica.ended for replica in replicas] == [int(n != failing) for n in range(3)]
    replicas[failing].error = None
    assert torch.equal(run(backend, some_tiles(6)), expected(some_tiles(6)))


def test_of_two_failures_the_first_replicas_is_raised():
    replicas = [Named(), Named(error=KeyError('second')), Named(error=ValueError('third'))]
    with pytest.raises(KeyError, match='second'):
        run(ReplicatedBackend(replicas), some_tiles(6))


def test_results_are_not_changed_by_the_next_batch():
    backend = ReplicatedBackend([Named(), Named()])
    first = run(backend, some_tiles(6, 1))
    run(backend, some_tiles(6, 2))
    assert torch.equal(first, expected(some_tiles(6, 1)))


@pytest.mark.parametrize('tiles, message', [
    (some_tiles(17), 'expected 1 to 16'),
    (some_tiles(4)[:0], 'expected 1 to 16'),
    (some_tiles(4).float(), 'expected torch.uint8'),
])
def test_a_call_that_cannot_be_is_refused_before_anyone_works(tiles, message):
    replicas = [Named(), Named()]
    with pytest.raises(ValueError, match=message):
        run(ReplicatedBackend(replicas), tiles)
    assert not replicas[0].batches and not replicas[1].batches


@pytest.mark.parametrize('backends, message', [
    ([], 'expected at least one'),
    ([Named(), Named(dtype=torch.float16)], 'replica 1 .*build all of them from the same model'),
])
def test_backends_that_are_not_replicas_are_refused(backends, message):
    with pytest.raises(ValueError, match=message):
        ReplicatedBackend(backends)


def test_a_single_backend_is_replicated_too():
    replicas = [Named()]
    backend = ReplicatedBackend(replicas)
    assert backend.backends == (replicas[0], )
    assert torch.equal(run(backend, some_tiles(8)), expected(some_tiles(8)))


def test_threads_end_with_the_backend():
    before = set(threading.enumerate())
    backend = ReplicatedBackend([Named(), Named(), Named()])
    run(backend, some_tiles(8))
    workers = set(threading.enumerate()) - before
    assert sorted(worker.name[:17] for worker in workers) == ['vision-replica-1_',
                                                              'vision-replica-2_']
    del backend
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive()
