"""Rows of the feature pool: what holds for every order of requests, by a model of TurboMind."""
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmdeploy_ext.turbomind.generations import Generations, wraps_in_time
from lmdeploy_ext.turbomind.pool_rows import Lease, PoolRows, Refusal
from lmdeploy_ext.turbomind.waiting_line import Wait
from tests.turbomind.engine_model import BLOCK, StaleMatch
from tests.turbomind.pool_user import PoolUser, Request

IMAGES = 12


class Requests(RuleBasedStateMachine):
    """Any order of requests over few images; prompts of which blocks begin and end everywhere."""
    slots, slot_rows, blocks, lru = 4, 16, 24, True
    tokens = [16, 16, 32, 48, 16, 5, 21, 64, 33, 16, 32, 1]

    def __init__(self):
        super().__init__()
        kv_tokens = self.blocks * BLOCK if self.lru else None
        self.user = PoolUser(self.slots, self.slot_rows, self.blocks, self.tokens, kv_tokens,
                             self.lru)

    def one(self, index, computed=None):
        running = [request for request in self.user.running
                   if computed is None or request.computed == computed]
        return running[index % len(running)] if running else None

    @rule(before=st.one_of(st.integers(0, 2), st.integers(46, 66), st.integers(120, 132)),
          images=st.lists(st.integers(0, IMAGES - 1), min_size=1, max_size=3),
          after=st.integers(1, 70))
    def send(self, before, images, after):
        self.user.send(before, images, after)

    @rule(index=st.integers(0, 9), share=st.floats(0, 1))
    def compute_chunk(self, index, share):
        request = self.one(index, computed=False)
        if request:
            self.user.compute_chunk(request, share)

    @rule(index=st.integers(0, 9))
    def compute(self, index):
        request = self.one(index, computed=False)
        if request:
            self.user.compute(request)

    @rule(index=st.integers(0, 9))
    def end_or_cancel(self, index):
        request = self.one(index)
        if request:
            self.user.end(request)

    @rule(image=st.integers(0, IMAGES - 1), before=st.integers(0, 70), times=st.integers(1, 40))
    def serve_others(self, image, before, times):
        for other in range(times):
            self.user.serve(before, [(image + other) % IMAGES])

    @precondition(lambda self: not self.lru)
    @rule(index=st.integers(0, 1000))
    def evict(self, index):
        self.user.engine.evict(index)

    @invariant()
    def figures_agree(self):
        figures = self.user.rows.figures()
        held = {image for request in self.user.running for image in request.lease.images}
        assert figures.rows_in_use == self.slot_rows * sum(len(i.places) for i in held)
        places = [place for image in held for place in image.places]
        assert len({slot for slot, _ in places}) == len(places), 'two images in one slot'


class AnyEviction(Requests):
    """KV blocks are evicted in any order and some never: each generation is used once."""
    lru = False


class SmallTiles(Requests):
    """Many tiles in a block, generations that come back after five uses."""
    slots, slot_rows, blocks = 8, 5, 8
    tokens = [5, 10, 5, 15, 3, 7, 5, 5, 20, 1, 9, 5]


class LargeTiles(Requests):
    """Tiles of more than a block."""
    slots, slot_rows, blocks = 3, 100, 16
    tokens = [100, 100, 200, 64, 65, 128, 300, 100, 1, 99, 101, 100]


LIMITS = settings(max_examples=60, stateful_step_count=40)
for machine in (Requests, AnyEviction, SmallTiles, LargeTiles):
    machine.TestCase.settings = LIMITS
TestRequests = Requests.TestCase
TestAnyEviction = AnyEviction.TestCase
TestSmallTiles = SmallTiles.TestCase
TestLargeTiles = LargeTiles.TestCase


def images_in_turn(order, count, rng):
    if order == 'in turn':
        return list(range(count))
    if order == 'back and forth':
        return [*range(count), *reversed(range(count))]
    if order == 'one again and again':
        return [number for image in range(1, count) for number in (0, image)]
    return [rng.randrange(count) for _ in range(count)]


@pytest.mark.parametrize('order', ['in turn', 'back and forth', 'one again and again', 'random'])
@pytest.mark.parametrize('before', [0, 40, 63, 64, 65])
@pytest.mark.parametrize('slot_rows, blocks', [(64, 100), (17, 12)])
def test_twenty_times_more_images_than_rows_are_told_apart(order, before, slot_rows, blocks):
    """The trie is kept warm: it outlasts the pool several times, and generations come back."""
    rng = random.Random(before)
    slots, count = 6, 20 * 6
    tokens = [slot_rows * (1 + image % 3) - image % 5 for image in range(count)]
    user = PoolUser(slots, slot_rows, blocks, tokens, blocks * BLOCK)
    assert wraps_in_time(slots, slot_rows, blocks * BLOCK + slots * slot_rows)
    for _ in range(3):
        for image in images_in_turn(order, count, rng):
            assert isinstance(user.serve(before, [image]), Request), 'a generation came too late'
    assert user.rows.figures().reuses > slots * slot_rows


def test_prompts_of_the_stock_path_make_generations_usable_again():
    """Also where a pool is too small for its KV blocks, it does not stand still for ever."""
    user = PoolUser(1, 4, 8, [4] * 8, 8 * BLOCK)
    for image in range(4):
        assert isinstance(user.serve(0, [image]), Request)
    assert user.serve(0, [4]) is Refusal.NEVER
    user.rows.computed_elsewhere(8 * BLOCK)
    assert isinstance(user.serve(0, [4]), Request)


def test_without_generations_the_model_sees_stale_matches(monkeypatch):
    """The model finds what it is there to find."""
    monkeypatch.setattr(Generations, 'begin', lambda self, slot: 0)
    user = PoolUser(1, 64, 40, [64] * 2, 40 * BLOCK)
    user.serve(0, [0])
    with pytest.raises(StaleMatch):
        user.serve(0, [1])


def test_generations_that_come_back_too_early_are_stale(monkeypatch):
    monkeypatch.setattr(Generations, 'usable', lambda self, slot, ahead=0: True)
    user = PoolUser(1, 4, 400, [4] * 8, 400 * BLOCK)
    with pytest.raises(StaleMatch):
        for image in range(8):
            user.serve(60, [image])


def test_cancelled_requests_use_up_generations_but_never_bring_one_back_too_early():
    """Nothing is computed, so no KV block is evicted, however often the slot changes hands."""
    user = PoolUser(2, 4, 400, [4] * 60, 400 * BLOCK)
    assert isinstance(user.serve(60, [0]), Request)
    outcomes = []
    for image in range(1, 60):
        request = user.send(60, [image])
        outcomes.append(request)
        if isinstance(request, Request):
            user.end(request)
    assert sum(isinstance(outcome, Request) for outcome in outcomes) == 2 * 4 - 1
    assert outcomes[-1] is Refusal.NEVER  # for the stock path
    assert user.rows.figures().waits_for_generation > 0


def test_a_warm_image_is_found_and_its_blocks_too():
    user = PoolUser(4, 64, 40, [128, 128], 40 * BLOCK)
    user.serve(64, [0])
    user.serve(64, [1])
    before = user.engine.matched_tokens
    user.serve(64, [0], after=30)
    assert user.engine.matched_tokens - before == 64 + 128
    assert user.rows.figures().hit_tokens == 128 and user.rows.figures().loads == 2


def test_blocks_of_a_prompt_that_is_half_computed_are_matched_by_nobody():
    """TurboMind puts them into its trie all the same; the second request waits, and after a
    cancellation the image gets other ids."""
    user = PoolUser(4, 64, 40, [128], 40 * BLOCK)
    first = user.send(0, [0])
    user.compute_chunk(first, 0.3)
    assert user.send(0, [0]) is Wait.ASIDE
    user.end(first)
    again = user.serve(0, [0])
    assert again.lease.fresh and again.sequence.matched == 0


def test_text_before_an_image_that_was_never_computed_is_left_alone_until_it_is_evicted():
    user = PoolUser(4, 64, 40, [64, 64], 40 * BLOCK)
    first = user.send(64, [0])
    user.compute_chunk(first, 0.1)
    user.end(first)
    assert user.send(64, [1]) is None
    assert isinstance(user.serve(0, [1]), Request), 'another beginning'
    user.rows.computed_elsewhere(40 * BLOCK)
    user.engine.evict_all()
    assert isinstance(user.serve(64, [1]), Request)


def test_blocks_that_may_have_been_evicted_are_relied_on_by_nobody():
    """The pool knows the image still, the engine no more: the first user computes it, alone."""
    user = PoolUser(4, 64, 4, [128, 64], 4 * BLOCK)
    user.serve(0, [0])
    user.serve(70, [1])
    first = user.send(0, [0])
    user.compute_chunk(first, 0.3)
    assert not first.lease.fresh and user.send(0, [0]) is Wait.ASIDE


def test_the_same_ids_come_again_only_after_as_many_tokens_as_the_blocks_hold():
    """40 tiles of an image over 60 slots: every sixth image has the ids of the one six before, in
    18 KV blocks, of which there are 24. So it takes the stock path now and then."""
    user = PoolUser(60, 4, 24, [160] * 60, 24 * BLOCK)
    outcomes = [user.serve_somehow(0, [image]) for image in range(60)]
    assert 0 < sum(outcomes) < 60


def test_what_is_reported_late_counts_as_computed_early():
    """Y was computed before the last use of X, but that is heard of after the end of X: its blocks
    are evicted before those of X."""
    x, y, v, z, w = range(5)
    user = PoolUser(389, 2, 12, [2, 575, 200, 2, 2], 12 * BLOCK)
    request_x, request_y = user.send(62, [x]), user.send(0, [y])
    user.compute(request_x)
    user.engine.compute(request_y.sequence, request_y.intended)
    user.engine.end(request_y.sequence)
    user.end(request_x)
    request_v = user.send(0, [v])
    assert user.serve(62, [z]).lease.images[0].places == [(0, 1)]  # where X was
    user.compute(request_v)
    user.rows.computed(request_y.lease)
    user.rows.give_back(request_y.lease)
    assert user.serve(62, [w]).lease.images[0].places != [(0, 0)]


def test_a_request_takes_rows_for_all_its_images_or_for_none():
    rows = PoolRows(3, 8, None)
    lease = rows.take([(b'a', 16)])
    rows.written(lease)
    assert rows.take([(b'a', 16), (b'b', 8), (b'c', 8)]) is Refusal.NEVER
    assert isinstance(rows.take([(b'a', 16), (b'b', 8), (b'b', 8)]), Lease)
    assert rows.take([(b'c', 1)]) is Refusal.FULL


def test_the_least_recently_used_image_goes_first_and_none_in_use():
    rows = PoolRows(3, 8, None)
    for key in (b'a', b'b', b'c', b'a'):
        lease = rows.take([(key, 8)])
        rows.written(lease)
        rows.computed(lease)
        rows.give_back(lease)
    rows.take([(b'c', 8)])
    assert rows.take([(b'd', 8)]).fresh[0].places == [(1, 1)]  # where b was
    assert not rows.take([(b'c', 8)]).fresh
    assert not rows.take([(b'a', 8)]).fresh


def test_images_without_a_key_are_never_found_again():
    rows = PoolRows(3, 8, None)
    lease = rows.take([(None, 8), (None, 8)])
    assert len(lease.fresh) == 2 and rows.figures().images == 2
    rows.computed(lease)
    rows.give_back(lease)
    assert rows.figures().images == 0 and rows.figures().rows_in_use == 0


def test_a_key_of_another_size_is_another_image():
    rows = PoolRows(3, 8, None)
    rows.written(rows.take([(b'a', 8)]))
    assert rows.take([(b'a', 9)]).fresh
    assert not rows.take([(b'a', 8)]).fresh
