"""A preempted sequence is computed anew from its first token."""
from lmdeploy_ext.patching import patch

_TARGET = 'lmdeploy.pytorch.paging.eviction_helper.recompute_eviction_helper'


@patch(target=f'{_TARGET}:RecomputeEvictionHelper.evict_for_seq',
       group='correctness',
       upstream={'2f679b67b6b14845': '0.6.0 to 0.6.4'},
       why='It frees the KV blocks of a preempted sequence but not its history length, so the '
       'sequence goes on with the blocks of others: 7 prompts in 16 blocks gave 2 right answers.',
       remove_when='evict_for_seq, or what it calls, sets the step of the evicted sequence to 0')
def forget_evicted_history(original):

    def evict_for_seq(self, seq, evictable_seqs, prealloc_size):
        held = [other for other in evictable_seqs if len(other.logical_blocks)]
        success = original(self, seq, evictable_seqs, prealloc_size)
        for other in held:
            if not len(other.logical_blocks):
                other.set_step(0)
        return success

    return evict_for_seq
