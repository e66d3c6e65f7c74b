"""What a cancelled request has not computed does not count as computed."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.scheduler:Scheduler.stop_session',
       group='correctness',
       upstream={'2d9c27b7198087d3': '0.6.0 to 0.6.4'},
       why='The next request of an opened session counts all tokens of a cancelled one as '
       'history, also those that waited to be computed: it is answered from KV blocks of others, '
       'and the prefix cache hands them out.',
       needs=('update_token_ids_evicted', ),  # which reads the mark
       remove_when='an opened session goes on rightly after a request was cancelled in the queue')
def mark_what_waits(original):

    def stop_session(self, session_id):
        from lmdeploy.pytorch.messages import MessageStatus
        for seq in self.sessions[session_id].sequences.values():
            seq.is_cancelled = (getattr(seq, 'is_cancelled', False)
                                or seq.status in (MessageStatus.WAITING, MessageStatus.RUNNING))
        original(self, session_id)

    return stop_session
