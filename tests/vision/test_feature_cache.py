"""The feature cache: what was put is what comes back, as long as room and time allow."""
import random
import threading
import weakref
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.vision.feature_cache import CacheFigures, FeatureCache

UNIT = 16  # bytes of a row of features


class Clock:
    """A timer that stands still unless it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def features(rows, value=0.0):
    return torch.full((rows, UNIT // 4), float(value))


def keys_in(cache, keys):
    """Which of the keys are found, looked up in this order."""
    return [key for key in keys if cache.get(key) is not None]


class Model:
    """What the cache has to be, written plainly: two ordered dictionaries, the least recently
    used entry first, each entry (value, bytes, expiry)."""

    def __init__(self, limit, seconds, host_limit):
        self.limit, self.seconds, self.host_limit = limit, seconds, host_limit
        self.device, self.host = OrderedDict(), OrderedDict()
        self.counts = dict.fromkeys(['hits', 'host_hits', 'misses', 'spills', 'evictions',
                                     'expirations'], 0)

    @staticmethod
    def bytes_of(tier):
        return sum(size for _, size, _ in tier.values())

    def expire(self, now):
        for tier in (self.device, self.host):
            for key in [key for key, (_, _, expiry) in tier.items() if expiry <= now]:
                del tier[key]
                self.counts['expirations'] += 1

    def add(self, key, entry):
        while self.bytes_of(self.device) + entry[1] > self.limit:
            old_key, old = self.device.popitem(last=False)
            if old[1] > self.host_limit:
                self.counts['evictions'] += 1
                continue
            while self.bytes_of(self.host) + old[1] > self.host_limit:
                self.host.popitem(last=False)
                self.counts['evictions'] += 1
            self.host[old_key] = old
            self.counts['spills'] += 1
        self.device[key] = entry

    def put(self, key, value, size, now):
        if size > self.limit:
            return
        self.expire(now)
        self.device.pop(key, None)
        self.host.pop(key, None)
        self.add(key, (value, size, now + self.seconds))

    def get(self, key, now):
        self.expire(now)
        if key in self.device:
            self.device.move_to_end(key)
            self.counts['hits'] += 1
            return self.device[key][0]
        if key in self.host:
            entry = self.host.pop(key)
            self.add(key, entry)
            self.counts['hits'] += 1
            self.counts['host_hits'] += 1
            return entry[0]
        self.counts['misses'] += 1
        return None

    def figures(self, now):
        self.expire(now)
        return CacheFigures(entries=len(self.device), bytes=self.bytes_of(self.device),
                            host_entries=len(self.host), host_bytes=self.bytes_of(self.host),
                            **self.counts)


KEYS = st.sampled_from([b'a', b'b', b'c', b'd', b'e'])
STEPS = st.lists(st.one_of(st.tuples(st.just('put'), KEYS, st.integers(1, 5)),
                           st.tuples(st.just('get'), KEYS, st.none()),
                           st.tuples(st.just('wait'), st.none(), st.integers(1, 12))), max_size=60)


@given(limit=st.integers(1, 8), host=st.integers(0, 6), seconds=st.sampled_from([None, 5, 20]),
       steps=STEPS)
def test_any_steps_leave_what_two_plain_dictionaries_would_hold(limit, host, seconds, steps):
    clock = Clock()
    cache = FeatureCache(limit * UNIT, seconds, host * UNIT, timer=clock)
    model = Model(limit * UNIT, float('inf') if seconds is None else seconds, host * UNIT)
    for number, (step, key, amount) in enumerate(steps):
        if step == 'wait':
            clock.now += amount
        elif step == 'put':
            cache.put(key, features(amount, number))
            model.put(key, number, amount * UNIT, clock.now)
        else:
            found, expected = cache.get(key), model.get(key, clock.now)
            assert (found is None) == (expected is None)
            assert found is None or (found == expected).all()
        figures = cache.figures()
        assert figures == model.figures(clock.now)
        assert figures.bytes <= limit * UNIT and figures.host_bytes <= host * UNIT


def test_what_was_used_last_stays():
    cache = FeatureCache(3 * UNIT, None)
    for key in (b'a', b'b', b'c'):
        cache.put(key, features(1))
    cache.get(b'a')
    cache.put(b'd', features(1))
    assert keys_in(cache, [b'a', b'b', b'c', b'd']) == [b'a', b'c', b'd']
    assert cache.figures().evictions == 1


def test_a_large_entry_takes_the_room_of_several():
    cache = FeatureCache(4 * UNIT, None)
    for key in (b'a', b'b', b'c', b'd'):
        cache.put(key, features(1))
    cache.put(b'e', features(3))
    assert keys_in(cache, [b'a', b'b', b'c', b'd', b'e']) == [b'd', b'e']


def test_features_that_are_larger_than_the_cache_are_not_kept_and_push_nothing_out():
    cache = FeatureCache(2 * UNIT, None, host_bytes=100 * UNIT)
    cache.put(b'a', features(1))
    cache.put(b'b', features(3))
    assert keys_in(cache, [b'a', b'b']) == [b'a']


def test_features_live_their_time_from_when_they_were_put_used_or_not():
    clock = Clock()
    cache = FeatureCache(1 * UNIT, 10, host_bytes=8 * UNIT, timer=clock)
    cache.put(b'a', features(1))
    clock.now += 9
    assert cache.get(b'a') is not None
    cache.put(b'b', features(1))  # a goes to host memory
    clock.now += 0.5
    assert cache.get(b'a') is not None, 'a comes back, and b goes there'
    clock.now += 0.5
    assert cache.get(b'a') is None
    assert cache.get(b'b') is not None
    assert cache.figures().expirations == 1


def test_expired_features_leave_their_memory_also_where_nobody_asks_for_them():
    clock = Clock()
    cache = FeatureCache(2 * UNIT, 10, host_bytes=2 * UNIT, timer=clock)
    for key in (b'a', b'b', b'c'):
        cache.put(key, features(1))
    gone = weakref.ref(cache.get(b'c'))
    clock.now += 10
    figures = cache.figures()
    assert (figures.bytes, figures.host_bytes, figures.expirations) == (0, 0, 3)
    assert gone() is None


def test_host_memory_keeps_what_has_no_room_and_a_hit_there_brings_it_back():
    cache = FeatureCache(1 * UNIT, None, host_bytes=2 * UNIT)
    for value, key in enumerate([b'a', b'b', b'c', b'd']):
        cache.put(key, features(1, value))
    assert cache.get(b'a') is None, 'it had to leave host memory, too'
    for value, key in ((1, b'b'), (2, b'c'), (3, b'd')):
        assert (cache.get(key) == value).all()
    figures = cache.figures()
    assert (figures.hits, figures.host_hits, figures.misses) == (3, 3, 1)
    assert (figures.entries, figures.host_entries) == (1, 2)
    assert cache.get(b'd') is not None and cache.figures().host_hits == 3


def test_a_cache_that_is_off_keeps_nothing_and_counts_nothing():
    cache = FeatureCache(0, None, host_bytes=100 * UNIT)
    cache.put(b'a', features(1))
    cache.put(b'b', torch.empty(0, 4))
    assert cache.get(b'a') is None and cache.get(b'b') is None
    assert cache.figures() == CacheFigures(*[0] * 10)


def test_no_features_at_all_are_kept_like_any():
    cache = FeatureCache(UNIT, None)
    cache.put(b'a', torch.empty(0, 4))
    assert cache.get(b'a').shape == (0, 4)


def test_a_part_of_a_batch_does_not_keep_the_batch():
    batch = torch.arange(400.0).view(100, 4)
    cache = FeatureCache(1000 * UNIT, None)
    cache.put(b'a', batch[3:5])
    cache.put(b'b', batch.t()[:2])
    cache.put(b'c', torch.ones(1, 4).expand(10, 4))
    whole = features(2, 7)
    cache.put(b'd', whole)
    assert torch.equal(cache.get(b'a'), batch[3:5]) and torch.equal(cache.get(b'b'), batch.t()[:2])
    batch.zero_()
    assert cache.get(b'a').sum() != 0, 'nor does it change with it'
    for key, rows in ((b'a', 2), (b'b', 50), (b'c', 10)):
        assert cache.get(key).untyped_storage().nbytes() == rows * UNIT
    assert cache.get(b'd').data_ptr() == whole.data_ptr(), 'what is whole is not copied'
    assert cache.figures().bytes == 64 * UNIT


def test_features_come_back_without_the_graph_that_they_were_computed_with():
    weight = torch.ones(4, requires_grad=True)
    cache = FeatureCache(UNIT, None)
    cache.put(b'a', features(1) * weight)
    assert not cache.get(b'a').requires_grad


def test_features_of_inference_mode_are_kept_and_found_outside_of_it():
    cache = FeatureCache(10 * UNIT, None)
    with torch.inference_mode():
        batch = features(3, 5)
        cache.put(b'part', batch[1:])
        cache.put(b'all', batch)
    assert cache.get(b'part').shape == (2, 4) and (cache.get(b'all') == 5).all()


@pytest.mark.parametrize('limits', [(-1, None), (1, None, -1), (1, 0), (1, -2.0),
                                    (1, float('nan'))])
def test_impossible_limits_are_refused(limits):
    with pytest.raises(ValueError, match='expected'):
        FeatureCache(*limits)


def test_many_threads_get_their_own_features_and_the_counts_add_up():
    cache = FeatureCache(6 * UNIT, None, host_bytes=6 * UNIT)
    wrong, looked_up = [], []

    def client(chance):
        count = 0
        for _ in range(400):
            number = chance.randrange(20)
            key = bytes([number])
            if chance.random() < 0.4:
                cache.put(key, features(1 + number % 3, number))
            else:
                found = cache.get(key)
                count += 1
                if found is not None and not torch.equal(found, features(1 + number % 3, number)):
                    wrong.append(key)
            figures = cache.figures()
            if figures.bytes > 6 * UNIT or figures.host_bytes > 6 * UNIT:
                wrong.append(figures)
        looked_up.append(count)

    threads = [threading.Thread(target=client, args=(random.Random(seed), )) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = cache.figures()
    assert wrong == [] and figures.hits + figures.misses == sum(looked_up)
