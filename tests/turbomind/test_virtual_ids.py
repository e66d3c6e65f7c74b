"""Token ids of rows above the embedding table."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.turbomind.virtual_ids import EmbeddingTable, NoPlace, virtual_ids

TABLE = EmbeddingTable(address=1 << 40, rows=1000, hidden=896, dtype='float16', item_bytes=2)
FEATURES = (896, 'float16')


@given(gap=st.integers(0, 1 << 30), size=st.integers(1 << 16, 1 << 24),
       hidden=st.sampled_from([896, 2048, 3584, 4096]), address=st.integers(1, 1 << 44))
def test_the_lookup_finds_each_row_where_it_is_written(gap, size, hidden, address):
    table = EmbeddingTable(address, 1000, hidden, 'bfloat16', 2)
    start = table.end + gap
    ids = virtual_ids(table, 1000, start, size, (hidden, 'bfloat16'))
    assert 0 <= ids.skip < table.row_bytes and ids.first >= 1000
    for row in (0, ids.rows - 1):
        looked_up = table.address + (ids.first + row) * table.row_bytes
        assert looked_up == start + ids.skip + row * table.row_bytes
        assert start <= looked_up and looked_up + table.row_bytes <= start + size


def test_ids_of_a_tile_are_rotated_by_its_generation():
    ids = virtual_ids(TABLE, 1000, TABLE.end, 1 << 20, FEATURES)
    assert ids.of_tile(2, 3, 4, 4) == [1011, 1008, 1009, 1010]
    assert ids.of_tile(2, 3, 4, 2) == [1011, 1008]


@pytest.mark.parametrize('change, reason', [
    (dict(address=TABLE.address - (1 << 20)), 'below the end of the embedding table'),
    (dict(address=TABLE.end - 1), 'below the end of the embedding table'),
    (dict(vocab_size=1001), 'the vocabulary has 1001 ids'),
    (dict(size=TABLE.row_bytes - 1), 'hold no row'),
    (dict(address=TABLE.address + 2**31 * TABLE.row_bytes), 'int32'),
    (dict(features=(896, 'bfloat16')), 'features are bfloat16'),
    (dict(features=(1024, 'float16')), 'rows of 1024'),
])
def test_what_cannot_be_named_is_refused_with_the_reason(change, reason):
    memory = dict(vocab_size=1000, address=TABLE.end, size=1 << 20, features=FEATURES)
    with pytest.raises(NoPlace, match=reason):
        virtual_ids(**{**dict(table=TABLE), **memory, **change})
