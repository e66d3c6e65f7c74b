"""Fair queueing: nothing is lost, order holds, nobody starves, requests get equal shares."""
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmdeploy_ext.vision.tile_queue import Flow, Job, TileQueue

PACKET = 16


def put(queue, *counts, flow=None):
    """Images of one request, a new one unless given."""
    flow = flow or Flow()
    jobs = [Job(flow, count) for count in counts]
    for job in jobs:
        queue.put(job)
    return jobs


def taken(queue, budget=PACKET):
    """(job, tiles) of a batch."""
    return [(part.job, part.last - part.first) for part in queue.take(budget)]


def test_takes_what_there_is_up_to_the_budget():
    queue = TileQueue(PACKET)
    [a], [b], [c] = put(queue, 3), put(queue, 10), put(queue, 7)
    assert queue.waiting_tiles == 20
    assert taken(queue) == [(a, 3), (c, 7), (b, 6)]
    assert queue.waiting_tiles == 4
    assert taken(queue) == [(b, 4)]
    assert queue.waiting_tiles == 0 and taken(queue) == []


def test_of_images_that_come_together_the_smaller_goes_first_of_equal_ones_the_earlier():
    queue = TileQueue(PACKET)
    [big], [first], [second] = put(queue, 13), put(queue, 1), put(queue, 1)
    assert taken(queue) == [(first, 1), (second, 1), (big, 13)]


def test_one_tile_does_not_wait_for_the_rest_of_thirty():
    queue = TileQueue(PACKET)
    [big] = put(queue, 30)
    assert taken(queue) == [(big, 16)]
    [small] = put(queue, 1)
    assert taken(queue) == [(small, 1), (big, 14)]


@given(before=st.lists(st.integers(1, 40), max_size=4), count=st.integers(17, 104),
       budget=st.integers(2, 16))
def test_one_tile_beside_a_begun_image_is_in_the_next_batch(before, count, budget):
    """However the batches before have cut that image."""
    queue = TileQueue(budget)
    flow = Flow()
    put(queue, *before, flow=flow)
    [big] = put(queue, count, flow=flow)
    while not big.taken:
        queue.take(budget)
    if big.queued:
        [small] = put(queue, 1)
        assert small in [job for job, _ in taken(queue, budget)]


def test_an_image_cut_by_the_end_of_a_batch_is_finished_in_the_next():
    """A crowd of equal images: each is in two batches at most, and they end in the order in which
    they came. Tile by tile in turn, all would end with the last batch."""
    queue = TileQueue(PACKET)
    jobs = [put(queue, 13)[0] for _ in range(64)]
    batches = []
    while queue.waiting_tiles:
        batches.append([job for job, _ in taken(queue)])
    assert sum(batches, []) == sorted(sum(batches, []), key=jobs.index)
    assert max(Counter(sum(batches, [])).values()) == 2


def test_images_of_a_request_keep_their_order_whatever_their_size():
    queue = TileQueue(PACKET)
    jobs = put(queue, 20, 1, 5)
    order = []
    while queue.waiting_tiles:
        order += [job for job, _ in taken(queue, 4)]
    assert list(dict.fromkeys(order)) == jobs


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=2, max_size=6),
       st.integers(1, 40))
def test_requests_that_always_wait_get_the_same_within_one_packet(requests, budget):
    queue = TileQueue(PACKET)
    flows = [Flow() for _ in requests]
    for flow, counts in zip(flows, requests):
        put(queue, *counts, flow=flow)
    got = Counter()
    while all(flow.jobs for flow in flows):
        for job, tiles in taken(queue, budget):
            got[job.flow] += tiles
            if not job.flow.jobs:
                return  # it may have got its last ones long before the batch ended
        shares = [got[flow] for flow in flows]
        assert max(shares) - min(shares) <= PACKET


@given(count=st.integers(1, PACKET), others=st.lists(st.lists(
    st.integers(1, 40), min_size=10, max_size=20), min_size=1, max_size=5),
       before=st.integers(0, 60))
def test_no_request_gets_much_before_a_new_one_is_served(count, others, before):
    queue = TileQueue(PACKET)
    flows = [Flow() for _ in others]
    for flow, counts in zip(flows, others):
        put(queue, *counts, flow=flow)
    queue.take(before)
    [new] = put(queue, count)
    got = Counter()
    while not new.taken:
        for part in queue.take(1):
            got[part.job.flow] += 1
    assert all(got[flow] <= PACKET + count for flow in flows)


@pytest.mark.parametrize('waiting', [1, 7])
def test_an_endless_stream_of_new_small_requests_starves_nobody(waiting):
    """They overtake each packet of a large image as often as they are many, times its tiles."""
    queue = TileQueue(PACKET)
    [big] = put(queue, 30)
    for _ in range(waiting):
        put(queue, 1)
    steps = 0
    while big.queued:
        [part] = queue.take(1)
        if part.job is not big:
            put(queue, 1)
        steps += 1
    assert steps <= 30 + 30 * waiting


def test_a_request_that_rested_gets_no_credit_for_it():
    queue = TileQueue(PACKET)
    early, late = Flow(), Flow()
    put(queue, 1, flow=early)
    for _ in range(50):
        put(queue, 16, flow=late)
    for _ in range(40):
        queue.take(PACKET)
    put(queue, *[8] * 20, flow=early)
    got = Counter()
    for _ in range(8):
        for job, tiles in taken(queue):
            got[job.flow] += tiles
    assert abs(got[early] - got[late]) <= PACKET


def test_a_removed_image_gives_way_to_the_next_of_its_request():
    queue = TileQueue(PACKET)
    first, second = put(queue, 16, 2)
    [other] = put(queue, 3)
    assert queue.remove(first) and not queue.remove(first)
    assert queue.waiting_tiles == 5
    assert taken(queue) == [(second, 2), (other, 3)]
    assert not queue.remove(second)


def test_the_rest_of_a_begun_image_can_be_removed():
    queue = TileQueue(PACKET)
    [big] = put(queue, 30)
    [other] = put(queue, 16)
    assert [job for job, _ in taken(queue, 10)] == [big]
    assert queue.remove(big)
    assert taken(queue) == [(other, 16)] and queue.waiting_tiles == 0


def test_of_what_cannot_be_queued_it_says_why():
    queue = TileQueue(PACKET)
    with pytest.raises(ValueError, match='found an image of 0 tiles; expected at least 1'):
        Job(Flow(), 0)
    with pytest.raises(ValueError, match='found packets of 0 tiles; expected at least 1'):
        TileQueue(0)
    [job] = put(queue, 20)
    with pytest.raises(ValueError, match='put before, 0 of its 20 tiles taken'):
        queue.put(job)
    queue.take(40)
    with pytest.raises(ValueError, match='put before, 20 of its 20 tiles taken'):
        queue.put(job)
    assert queue.waiting_tiles == 0


class AnyMix(RuleBasedStateMachine):
    """Whatever comes, goes and is taken: each tile is taken once or removed, in order."""

    def __init__(self):
        super().__init__()
        self.queue = TileQueue(8)
        self.flows = [Flow()]
        self.expected = {flow: [] for flow in self.flows}  # jobs that are not all taken or removed
        self.tiles = {}  # job -> tiles taken

    @rule()
    def request(self):
        self.flows.append(Flow())
        self.expected[self.flows[-1]] = []

    @rule(which=st.integers(0, 9), count=st.integers(1, 30))
    def image(self, which, count):
        flow = self.flows[which % len(self.flows)]
        [job] = put(self.queue, count, flow=flow)
        self.expected[flow].append(job)
        self.tiles[job] = 0

    @rule(budget=st.integers(1, 20))
    def batch(self, budget):
        waiting = self.queue.waiting_tiles
        total = 0
        for part in self.queue.take(budget):
            waits = self.expected[part.job.flow]
            assert part.job is waits[0], 'images of a request are served in order'
            assert part.first == self.tiles[part.job] < part.last
            self.tiles[part.job] = part.last
            total += part.last - part.first
            if part.last == part.job.count:
                del waits[0]
        assert total == min(budget, waiting)

    @precondition(lambda self: self.tiles)
    @rule(which=st.integers(0, 99))
    def cancel(self, which):
        job = list(self.tiles)[which % len(self.tiles)]
        waits = self.expected[job.flow]
        assert self.queue.remove(job) == (job in waits)
        if job in waits:
            waits.remove(job)

    @invariant()
    def counts(self):
        waits = [job for jobs in self.expected.values() for job in jobs]
        assert self.queue.waiting_tiles == sum(job.count - self.tiles[job] for job in waits)
        assert {job for job in self.tiles if job.queued} == set(waits)


AnyMix.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyMix = AnyMix.TestCase
