"""The feature cache on a GPU: streams keep order, memory is not given away early."""
import pytest
import torch

from lmdeploy_ext.vision.feature_cache import FeatureCache

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]
SHAPE = (256, 1024)  # a tile's features: 512 KiB in float16
TILE = 256 * 1024 * 2


def features(value, tiles=1):
    return torch.full((tiles * SHAPE[0], SHAPE[1]), float(value), dtype=torch.float16,
                      device='cuda')


def is_all(tensor, value):
    return bool((tensor == value).all())


def test_features_survive_the_way_to_pinned_memory_and_back_bit_for_bit():
    torch.manual_seed(0)
    cache = FeatureCache(2 * TILE, None, host_bytes=16 * TILE, pinned=True)
    originals = {bytes([n]): torch.randn(SHAPE, device='cuda').bfloat16() for n in range(12)}
    for key, original in originals.items():
        cache.put(key, original.clone())
    assert cache.figures().host_entries == 10
    for _ in range(3):
        for key, original in originals.items():
            found = cache.get(key)
            assert found.is_cuda and found.dtype == torch.bfloat16 and torch.equal(found, original)
    assert cache.figures().misses == 0 and cache.figures().host_hits == 36


def test_pinned_memory_is_counted_as_the_allocator_rounds_it():
    cache = FeatureCache(3 * TILE, None, host_bytes=4 * TILE, pinned=True)
    cache.put(b'three', features(1, tiles=3))
    cache.put(b'other', features(2))
    assert cache.figures().host_bytes == 4 * TILE


def test_a_spill_does_not_wait_for_features_that_are_still_computed():
    """The GPU is kept busy by a kernel that waits; put() and the spill return before it ends."""
    cache = FeatureCache(1 * TILE, None, host_bytes=16 * TILE, pinned=True)
    warm = [torch.empty(SHAPE, dtype=torch.float16, pin_memory=True) for _ in range(8)]
    del warm  # the allocator has all the pinned memory that is needed from here on
    for value in range(4):
        cache.put(bytes([value]), features(value))
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    late = features(7)
    cache.put(b'late', late)
    cache.put(b'next', features(8))
    del late
    done = torch.cuda.current_stream().record_event()
    assert not done.query(), 'the host waited for the GPU'
    assert is_all(cache.get(b'late'), 7) and is_all(cache.get(b'next'), 8)


def test_features_of_one_stream_are_read_on_another_after_they_are_there():
    cache = FeatureCache(64 * TILE, None)
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(50_000_000)
        cache.put(b'a', features(5))
    with torch.cuda.stream(consumer):
        found = cache.get(b'a').clone()
    consumer.synchronize()
    assert is_all(found, 5)


def test_memory_of_evicted_features_is_not_given_away_while_it_is_read():
    """Readers on a slow stream of their own, while what they read is evicted and its memory
    asked for again, by writers on the stream that it came from."""
    cache = FeatureCache(1 * TILE, None, host_bytes=4 * TILE, pinned=True)
    reader, kept = torch.cuda.Stream(), []
    for value in range(60):
        cache.put(b'a', features(value))
        with torch.cuda.stream(reader):
            torch.cuda._sleep(2_000_000)
            kept.append(cache.get(b'a')[::64].clone())
        cache.put(b'b', features(-1))  # pushes a to host memory
        cache.put(b'a', features(-2))  # and frees that
        features(-3)
    torch.cuda.synchronize()
    for value, rows in enumerate(kept):
        assert is_all(rows, value)
