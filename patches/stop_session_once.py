"""A session that is stopped twice gives its engine instance back once."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.async_engine:AsyncEngine.stop_session',
       group='correctness',
       upstream={'573aac7c1a8ccc4d': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.serve.async_engine:AsyncEngine.safe_run':
           {'d362f13015833fe9': '0.6.0 to 0.6.4'},
           'lmdeploy.serve.async_engine:AsyncEngine.get_generator':
           {'ada54ada1c30e64d': '0.6.0 to 0.6.4'},
       },
       why='The server stops the session of a client that has left, and the request does so again '
       'when it ends. By then the instance may answer another request: both wait for its replies, '
       'each takes those of the other, and one hangs for ever; and the instance is lent twice.',
       remove_when='stop_session leaves a session alone that is not in running_session_ids')
def stop_once(original):

    async def stop_session(self, session_id):
        stopping = vars(self).setdefault('_sessions_that_stop', set())
        if session_id in stopping or session_id not in self.running_session_ids:
            return
        stopping.add(session_id)
        try:
            await original(self, session_id)
        finally:
            stopping.discard(session_id)

    return stop_session
