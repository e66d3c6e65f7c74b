"""A request that is cancelled while it waits leaves nothing behind that counts as computed."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.scheduler:Scheduler.stop_session',
       group='correctness',
       upstream={'2d9c27b7198087d3': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.pytorch.messages:SchedulerSequence.update_token_ids':
           {
               'e9d325192967702c': '0.6.0 to 0.6.1',
               '36aa2e3cf4fe9f99': '0.6.2 to 0.6.4',
           },
       },
       why='The next request of that session counts the cancelled tokens as history although they '
       'were never computed, and is answered from KV blocks of others.',
       # without blocks the whole session is computed anew
       needs=('update_token_ids_evicted', ),
       remove_when='an opened session goes on rightly after a request was cancelled in the queue')
def forget_what_waits(original):

    def stop_session(self, session_id):
        from lmdeploy.pytorch.messages import MessageStatus
        for seq in self.sessions[session_id].sequences.values():
            if seq.status == MessageStatus.WAITING:
                self.block_manager.free(seq)
                seq.set_step(0)
        original(self, session_id)

    return stop_session
