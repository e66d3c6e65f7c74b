"""Features get to the rows that the ids name."""
import asyncio

import pytest
import torch

from lmdeploy_ext.turbomind.feature_pool import FeaturePool
from lmdeploy_ext.turbomind.pool_rows import PoolRows
from lmdeploy_ext.turbomind.virtual_ids import VirtualIds
from tests.turbomind.stand_in import HostRowWriter

TABLE_ROWS, GAP, SLOTS, SLOT_ROWS, HIDDEN = 50, 3, 6, 8, 4


@pytest.fixture
def memory():
    return torch.zeros(TABLE_ROWS + GAP + SLOTS * SLOT_ROWS, HIDDEN, dtype=torch.bfloat16)


@pytest.fixture
def pool(memory):
    first = TABLE_ROWS + GAP
    return FeaturePool(VirtualIds(first, SLOTS * SLOT_ROWS, 0), memory[first:], SLOT_ROWS,
                       HostRowWriter())


def test_a_lookup_by_id_gives_the_features_in_order_whatever_the_generation(memory, pool):
    rows = PoolRows(SLOTS, SLOT_ROWS, kv_tokens=0)
    generations = set()
    for round_ in range(30):
        lease = rows.take([(b'a%d' % round_, 20), (None, 3)])
        features = [torch.randn(20, HIDDEN), torch.randn(3, HIDDEN).half()]  # float32 and float16
        asyncio.run(pool.write(list(zip(lease.images, features))))
        for image, wanted in zip(lease.images, features):
            assert torch.equal(memory[pool.ids_of(image)], wanted.to(torch.bfloat16))
        generations |= {generation for image in lease.images for _, generation in image.places}
        rows.computed(lease)
        rows.give_back(lease)
    assert len(generations) > 4
    assert not memory[:TABLE_ROWS + GAP].any(), 'the table is not written to'


def test_an_error_of_the_device_is_the_writers(pool):
    class Broken:
        def write(self, rows, index, features, then):
            then(RuntimeError('illegal address'))

    pool._writer = Broken()
    image = PoolRows(SLOTS, SLOT_ROWS, None).take([(None, 3)]).images[0]
    with pytest.raises(RuntimeError, match='illegal address'):
        asyncio.run(pool.write([(image, torch.zeros(3, HIDDEN))]))


def test_nothing_fresh_is_nothing_to_do(pool):
    pool._writer = None
    asyncio.run(pool.write([]))
