"""A prefill knows the prompts that were computed just before, and takes as many as fit then."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.scheduler:Scheduler._schedule_prefill',
       group='speed',
       upstream={
           '4b5bc89485bd6d7c': '0.6.0',
           '6790b26d0da505b0': '0.6.1 to 0.6.4',
       },
       why='Prompts enter the prefix cache when their answers are decoded, which since 0.6.1 is '
       'after all prompts that wait; and max_prefill_token_num counts all tokens of a prompt: 8 '
       'prompts of 101 tokens, 96 of them known, were 8 batches of 128 at most, now 1.',
       remove_when='upstream puts blocks into the trie after a prefill and counts what is left')
def prepare_prefill(original):

    def _schedule_prefill(self):
        from lmdeploy_ext.pytorch.prefix.prefill import look_up_waiting, share_running
        share_running(self)
        look_up_waiting(self)
        return original(self)

    return _schedule_prefill
