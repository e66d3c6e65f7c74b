"""Prefix caching tells images apart: looking a prompt up."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.block_trie:BlockTrie.match',
       group='correctness',
       upstream={'18949d7b6ed545f9': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.pytorch.paging.block_trie:Node': {'3ca5beed678a2824': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.block:LogicalTokenBlocks': {'8158597862ca2642': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.paging.block_manager.base_block_manager:LogicalAllocator':
           {'acc33e55f1b5960e': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.messages:SchedulerSequence.set_step':
           {'b65a833327f89bc4': '0.6.0 to 0.6.4'},
       },
       why='All image tokens are id 0, so another image of as many tokens gets the first one\'s '
       'answer: 2 of 12 in a mixed batch were right. An opened session appends a known block '
       'behind its own, half full one, and writes into it.',
       # what enters the trie, and how an image is resumed that is in it in part
       needs=('block_trie_allocate', 'create_model_inputs_resume', 'history_embeddings_get_step'),
       remove_when='upstream keys image positions by the content of the image')
def match_by_content(original):

    def match(self, seq):
        from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
        prefix_cache_of(self).match(seq)

    match.tells_images_apart = True
    return match
