"""A prompt is known as soon as it is computed, not when its answer goes on."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.scheduler:Scheduler._schedule_prefill',
       group='speed',
       upstream={
           '4b5bc89485bd6d7c': '0.6.0',
           '6790b26d0da505b0': '0.6.1 to 0.6.4',
       },
       why='Prompts enter the prefix cache when their answers are decoded; since 0.6.1 prompts '
       'that wait are computed before that, each batch of them without the blocks of the last.',
       remove_when='upstream puts blocks into the trie after a prefill')
def share_before_prefill(original):

    def _schedule_prefill(self):
        for seq in self.running:
            self.block_trie.allocate(seq)
        return original(self)

    return _schedule_prefill
