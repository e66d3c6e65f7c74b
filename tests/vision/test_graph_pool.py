"""What a pool of graphs does about sizes, memory and failures, without a GPU.

`StandIn` is in the place of CUDA: its graphs compute when they are replayed. Real graphs are
tested in tests/gpu/test_graph_pool.py.
"""
import logging
import threading
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vision.backend import run
from lmdeploy_ext.vision.graph_capture import CapturedGraph, CaptureFailed
from lmdeploy_ext.vision.graph_plan import Costs, Plans
from lmdeploy_ext.vision.graph_pool import GraphBackend

MIB = 1 << 20
SIDE, TOKENS, HIDDEN = 4, 2, 3


class Vit:
    """Features that name their tile; counts its calls. What graphs need of `InternViT`."""
    side, tokens, hidden = SIDE, TOKENS, HIDDEN
    table = torch.zeros(1)

    def __init__(self):
        self.batches = []

    def __call__(self, tiles):
        self.batches.append(len(tiles))
        means = tiles.float().mean((1, 2, 3))
        rows = torch.arange(TOKENS * HIDDEN).reshape(TOKENS, HIDDEN)
        return means[:, None, None] + rows


class StandIn:
    """In the place of `CudaGraphRunner`: one static output, memory of `mib` a tile of the largest
    graph that is there, graphs of 1 ms plus 1 ms a tile, 10 ms more without one."""

    def __init__(self, vit, mib=10, fails=()):
        self.vit, self.mib, self.fails = vit, mib, set(fails)
        self.captured, self.alive, self.released = [], [], 0
        self.features = torch.full((64, TOKENS, HIDDEN), float('nan'))
        self.turns = 0

    def capture(self, bucket):
        self.captured.append(bucket)
        if bucket in self.fails:
            raise CaptureFailed('operation not permitted when stream is capturing')
        # where a larger one follows, the smaller ones' memory is of no use to it
        self.alive.append(bucket)
        return CapturedGraph(lambda tiles: self.replay(bucket, tiles), 1e-3 * (1 + bucket))

    def replay(self, bucket, tiles):
        assert bucket in self.alive, 'a graph was replayed whose memory was given back'
        count = len(tiles)
        assert count <= bucket
        self.features[:bucket] = float('nan')
        self.features[:count] = Vit()(tiles)
        return self.features[:count]

    def release(self):
        self.alive.clear()
        self.released += 1

    def held_bytes(self):
        if not self.alive:
            return 0
        # what a smaller graph took before a larger one stays
        grown = [bucket for index, bucket in enumerate(self.alive)
                 if bucket > max(self.alive[:index], default=0)]
        return self.mib * MIB * sum(grown)

    def eager_seconds(self, tiles):
        return 1e-3 * (11 + tiles)

    @contextmanager
    def turn(self):
        self.turns += 1
        yield


def pool(buckets=(1, 2, 4), max_tiles=8, limit=1024, lazily=False, **options):
    vit = Vit()
    runner = StandIn(vit, **options)
    return GraphBackend(vit, buckets, max_tiles, limit * MIB, lazily, runner=runner), runner, vit


def some_tiles(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)


def test_on_a_cpu_the_error_says_what_to_use():
    with pytest.raises(ValueError, match='on cpu; they need a CUDA device: use EagerBackend'):
        GraphBackend(Vit(), (1, ), 8, MIB, False)


@pytest.mark.parametrize('buckets', [(), (0, 1), (-1, ), (9, 16)])
def test_sizes_that_cannot_be_used_are_refused(buckets):
    with pytest.raises(ValueError, match='expected some from 1 to 8'):
        pool(buckets)


def test_sizes_above_the_largest_batch_are_left_out():
    assert pool((4, 64, 2, 4))[1].captured == [4, 2]


def test_the_largest_is_captured_first_and_before_any_batch():
    backend, runner, vit = pool()
    assert runner.captured == [4, 2, 1] and not vit.batches
    figures = backend.figures()
    assert (figures.graphs, figures.captures, figures.bytes) == (3, 3, 40 * MIB)
    assert figures.limit_bytes == 1024 * MIB and figures.capture_seconds > 0


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.booleans(), st.data())
def test_every_tile_gets_its_own_features_in_order(batches, lazily, data):
    backend, runner, _ = pool(lazily=lazily, fails=data.draw(st.sets(st.sampled_from((1, 2, 4)))))
    for seed, count in enumerate(batches):
        tiles, cuts = some_tiles(count, seed), []
        while sum(cuts) < count:
            cuts.append(data.draw(st.integers(1, count - sum(cuts))))
        out = [torch.full((cut, TOKENS, HIDDEN), float('nan')) for cut in cuts]
        backend.encode(tiles, out)
        assert torch.equal(torch.cat(out), Vit()(tiles))
    figures = backend.figures()
    assert figures.replayed_tiles + figures.eager_tiles == sum(batches)
    assert figures.replays == sum(figures.replays_by_bucket.values())
    assert runner.turns == len(batches)


def test_results_are_not_changed_by_the_next_batch():
    backend, _, _ = pool()
    first = run(backend, some_tiles(4, 1))
    kept = first.clone()
    run(backend, some_tiles(4, 2))
    assert torch.equal(first, kept)


def test_features_are_written_in_the_dtype_of_their_place():
    backend, _, _ = pool()
    out = torch.empty((2, TOKENS, HIDDEN), dtype=torch.float16)
    backend.encode(some_tiles(2), [out])
    assert torch.equal(out, Vit()(some_tiles(2)).half())


def test_a_batch_between_two_sizes_is_padded_and_that_is_counted():
    backend, _, vit = pool()
    run(backend, some_tiles(3))
    figures = backend.figures()
    assert figures.replays_by_bucket == {4: 1}  # 5 ms; 2 and 1 would take 3 + 2, in two slices
    assert (figures.replayed_tiles, figures.padded_tiles, figures.eager_runs) == (3, 1, 0)
    assert not vit.batches


def test_a_batch_above_the_largest_graph_runs_as_measured_times_say():
    backend, _, vit = pool()
    run(backend, some_tiles(8))  # two graphs of 4: 10 ms; without: 19
    assert backend.figures().replays_by_bucket == {4: 2} and not vit.batches
    assert Plans(Costs({4: 5e-3}, {8: 9e-3}), 8).plan(8)[0].bucket is None


@pytest.mark.parametrize('tiles, out, message', [
    (some_tiles(9), [9], 'expected 1 to 8'),
    (some_tiles(1)[:0], [], 'expected 1 to 8'),
    (some_tiles(2).float(), [2], 'expected torch.uint8'),
    (some_tiles(2)[:, :2], [2], 'expected torch.uint8'),
    (some_tiles(2), [1], 'each tile needs its place'),
])
def test_a_call_that_cannot_be_is_refused_and_leaves_no_trace(tiles, out, message):
    backend, _, _ = pool()
    with pytest.raises(ValueError, match=message):
        backend.encode(tiles, [torch.empty((count, TOKENS, HIDDEN)) for count in out])
    assert backend.figures().replays == backend.figures().eager_runs == 0


def test_a_failed_capture_is_told_and_its_batches_run_otherwise(caplog):
    with caplog.at_level(logging.WARNING):
        backend, runner, vit = pool((2, ), fails=(2, ))
    told, = caplog.messages
    assert 'no CUDA graph for batch size 2' in told and 'operation not permitted' in told
    for _ in range(3):
        run(backend, some_tiles(2))
    assert vit.batches == [2, 2, 2] and runner.captured == [2]
    assert (backend.figures().eager_runs, backend.figures().given_up) == (3, 1)


def test_any_other_error_of_a_capture_is_raised():
    vit = Vit()
    runner = StandIn(vit)
    runner.capture = lambda bucket: 1 / 0
    with pytest.raises(ZeroDivisionError):
        GraphBackend(vit, (1, ), 8, MIB, False, runner=runner)


def test_a_graph_that_does_not_fit_is_given_up_and_smaller_ones_are_kept(caplog):
    with caplog.at_level(logging.WARNING):
        backend, runner, _ = pool((1, 2, 4), limit=25)
    assert 'no CUDA graph for batch size 4' in caplog.text
    assert 'hold 40 MiB of at most 25' in caplog.text
    assert sorted(runner.alive) == [1, 2]
    figures = backend.figures()
    assert (figures.graphs, figures.bytes, figures.given_up) == (2, 20 * MIB, 1)
    assert torch.equal(run(backend, some_tiles(4)), Vit()(some_tiles(4)))


def test_where_nothing_fits_everything_runs_without_graphs():
    backend, runner, vit = pool(limit=5)
    run(backend, some_tiles(1))
    assert vit.batches == [1] and not runner.alive
    assert (backend.figures().bytes, backend.figures().given_up) == (0, 3)


def test_lazily_a_size_is_captured_when_it_comes_for_the_second_time():
    backend, runner, vit = pool(lazily=True)
    assert not runner.captured
    run(backend, some_tiles(2))
    assert vit.batches == [2] and not runner.captured
    run(backend, some_tiles(2))
    run(backend, some_tiles(2))
    assert runner.captured == [2] and vit.batches == [2]
    run(backend, some_tiles(3))
    run(backend, some_tiles(4))  # both fit the size 4
    assert runner.captured == [2, 4]
    run(backend, some_tiles(8))
    run(backend, some_tiles(8))
    assert runner.captured == [2, 4]


def test_lazily_what_a_larger_graph_took_in_vain_comes_back_and_the_smaller_ones_too():
    backend, runner, _ = pool(limit=25, lazily=True)
    for count in (1, 1, 2, 2):
        run(backend, some_tiles(count))
    # first 1, then 2: they took 10 + 20 MiB of 25: 2 is given up, and 1 captured again
    assert runner.captured == [1, 2, 1] and runner.released == 1
    assert backend.figures().bytes == 10 * MIB
    run(backend, some_tiles(1))
    assert backend.figures().replays_by_bucket[1] >= 2
    assert torch.equal(run(backend, some_tiles(2)), Vit()(some_tiles(2)))


def test_lazily_a_size_that_was_given_up_is_not_tried_again():
    backend, runner, _ = pool(lazily=True, fails=(2, ))
    for _ in range(6):
        run(backend, some_tiles(2))
    # the size 4 takes its place once 2 has failed
    assert runner.captured == [2, 4]
    assert backend.figures().replays_by_bucket[4] >= 1


def test_figures_are_there_at_any_time_from_any_thread():
    backend, _, _ = pool()
    seen, done = [], threading.Event()

    def watch():
        while not done.is_set():
            seen.append(backend.figures())
    watcher = threading.Thread(target=watch)
    watcher.start()
    for count in (1, 2, 3, 4) * 20:
        run(backend, some_tiles(count))
    done.set()
    watcher.join()
    for figures in (*seen, backend.figures()):
        assert figures.replays == sum(figures.replays_by_bucket.values())
    assert backend.figures().replayed_tiles == 200
