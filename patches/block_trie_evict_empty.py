"""Prefix caching: an empty trie has nothing to evict."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.block_trie:BlockTrie.evict',
       group='correctness',
       upstream={'51f02779598816dd': '0.6.0 to 0.6.4'},
       why='Without leaves its index array is a float array: IndexError, and the engine ends.',
       remove_when='BlockTrie.evict(1) returns 0 on an empty trie')
def evict_nothing(original):

    def evict(self, max_num_blocks):
        return original(self, max_num_blocks) if self.leaves else 0

    return evict
