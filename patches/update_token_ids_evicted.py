"""A session that lost its KV blocks while it was idle is computed anew when it goes on."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.messages:SchedulerSequence.update_token_ids',
       group='correctness',
       upstream={
           'e9d325192967702c': '0.6.0 to 0.6.1',
           '36aa2e3cf4fe9f99': '0.6.2 to 0.6.4',
       },
       why='It counts all earlier tokens as history, also where other sequences have taken their '
       'KV blocks since: the next answer of a chat is made from blocks that are not its own.',
       remove_when='a chat goes on rightly after a long prompt of another session in 16 blocks')
def recompute_evicted_session(original):

    def update_token_ids(self, *args, **kwargs):
        computed = self.history_len
        original(self, *args, **kwargs)
        if not len(self.logical_blocks):
            self.set_step(0)
        elif getattr(self, 'is_cancelled', False):  # see stop_session_uncomputed
            self.set_step(computed)
        self.is_cancelled = False

    return update_token_ids
