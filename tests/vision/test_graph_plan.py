"""How batches are cut for CUDA graphs: numbers only."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.vision.graph_plan import Costs, Plans, Slice, next_bucket

MOST = 24
# On an H200: ms of 1, 4, 13 and 52 tiles of the 300M tower, as it is and in a graph.
H200 = Costs(graphs={1: 4.5e-3, 4: 9.3e-3, 8: 16.4e-3},
             eager={1: 12.1e-3, 4: 12.1e-3, 13: 26.0e-3, 52: 95.8e-3})

seconds = st.floats(1e-4, 1.0)
sizes = st.integers(1, MOST)
costs = st.builds(Costs, graphs=st.dictionaries(sizes, seconds, max_size=5),
                  eager=st.dictionaries(sizes, seconds, min_size=1, max_size=4))


@settings(deadline=None)
@given(costs, sizes)
def test_slices_cover_the_batch_exactly_and_only_the_last_graph_is_padded(measured, tiles):
    slices = Plans(measured, MOST).plan(tiles)
    assert sum(part.tiles for part in slices) == tiles
    for part in slices:
        assert part.tiles >= 1 and part.padding >= 0
        assert part.bucket is None or part.bucket in measured.graphs
    assert not any(part.padding for part in slices[:-1])


@settings(deadline=None)
@given(costs, sizes)
def test_the_plan_is_never_slower_than_a_single_graph_or_none(measured, tiles):
    plans = Plans(measured, MOST)
    assert plans.seconds(tiles) <= measured.eager_seconds(MOST)[tiles - 1]
    for bucket, taken in measured.graphs.items():
        if bucket >= tiles:
            assert plans.seconds(tiles) <= taken


@settings(deadline=None)
@given(costs, sizes)
def test_the_plan_takes_what_it_says(measured, tiles):
    plans = Plans(measured, MOST)
    eager = measured.eager_seconds(MOST)
    taken = sum(eager[part.tiles - 1] if part.bucket is None else measured.graphs[part.bucket]
                for part in plans.plan(tiles))
    assert plans.seconds(tiles) == pytest.approx(taken)


@settings(deadline=None)
@given(costs, st.data())
def test_a_slower_graph_never_makes_a_batch_faster_and_a_new_one_never_slower(measured, data):
    tiles, bucket, taken = data.draw(sizes), data.draw(sizes), data.draw(seconds)
    before = Plans(measured, MOST).seconds(tiles)
    with_it = Costs({**measured.graphs, bucket: taken}, measured.eager)
    after = Plans(with_it, MOST).seconds(tiles)
    if taken >= measured.graphs.get(bucket, float('inf')):
        assert after >= before
    else:
        assert after <= before


@settings(deadline=None)
@given(costs, sizes, st.floats(1, 10))
def test_slower_eager_runs_never_make_a_batch_faster(measured, tiles, factor):
    slower = Costs(measured.graphs, {size: factor * taken
                                     for size, taken in measured.eager.items()})
    assert Plans(slower, MOST).seconds(tiles) >= Plans(measured, MOST).seconds(tiles)


@pytest.mark.parametrize('tiles, expected', [
    (1, [Slice(1, 1)]),
    (3, [Slice(3, 4)]),  # padded: 9.3 ms against 12.1 without, 13.5 of ones
    (5, [Slice(5)]),  # 13.6 ms against 13.8 of 4 and 1, and 16.4 padded to 8
    (7, [Slice(7, 8)]),
    (8, [Slice(8, 8)]),
    (13, [Slice(13)]),
    (52, [Slice(52)]),
])
def test_measured_times_of_an_h200(tiles, expected):
    assert sorted(Plans(H200, 52).plan(tiles), key=lambda part: part.tiles) == expected


def test_of_plans_that_take_the_same_the_one_of_fewer_slices_is_taken():
    flat = Costs(graphs={1: 1.0, 2: 2.0, 4: 4.0}, eager={1: 9.0})
    assert Plans(flat, 4).plan(4) == (Slice(4, 4), )


def test_eager_times_between_and_beyond_the_measured_sizes():
    measured = Costs({}, {2: 1.0, 4: 2.0})
    assert measured.eager_seconds(8) == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])


@pytest.mark.parametrize('graphs, eager', [
    ({}, {}),
    ({1: 0.0}, {1: 1.0}),
    ({0: 1.0}, {1: 1.0}),
    ({}, {1: float('nan')}),
    ({}, {1: float('inf')}),
])
def test_times_that_cannot_be_are_refused(graphs, eager):
    with pytest.raises(ValueError, match='expected at least 1 tile|measure at least one'):
        Costs(graphs, eager)


def test_the_next_bucket_is_the_smallest_that_fits():
    assert [next_bucket(tiles, (1, 4, 2)) for tiles in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]
    assert next_bucket(1, ()) is None
