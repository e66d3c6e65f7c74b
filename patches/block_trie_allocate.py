"""Prefix caching tells images apart: making blocks known."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.block_trie:BlockTrie.allocate',
       group='correctness',
       upstream={'6f3df8f0403b1ad1': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.pytorch.paging.block_trie:Node': {'3ca5beed678a2824': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.block:LogicalTokenBlocks': {'8158597862ca2642': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.paging.block_manager.base_block_manager:LogicalAllocator':
           {'acc33e55f1b5960e': '0.6.0 to 0.6.4'},
       },
       why='Blocks are known by token ids alone, and all image tokens are id 0. A block is shared '
       'one step before its last token is computed.',
       remove_when='block_trie_match is removed')
def allocate_by_content(original):

    def allocate(self, seq):
        from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
        prefix_cache_of(self).insert(seq)

    return allocate
