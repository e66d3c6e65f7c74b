"""Evicting from a trie of cached prefixes that holds none."""
import pytest
from lmdeploy.pytorch.config import CacheConfig
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_trie import BlockTrie


@pytest.fixture
def trie():
    config = CacheConfig(max_batches=2, block_size=16, num_cpu_blocks=1, num_gpu_blocks=4,
                         enable_prefix_caching=True)
    return BlockTrie(config, DefaultBlockManager(4, 1))


def test_stock_fails_on_an_empty_trie(trie):
    with pytest.raises(IndexError):
        BlockTrie.evict.__wrapped__(trie, 1)


def test_nothing_is_evicted_from_an_empty_trie(trie):
    assert trie.evict(1) == 0
