"""A cancelled request proves nothing about KV blocks."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.turbomind.turbomind:TurboMindInstance.cancel',
       group='speed',
       upstream={'918c2fc9413cda25': '0.6.0 to 0.6.4'},
       why='TurboMind answers a request that is cancelled before its first token with what an '
       'earlier one left in the buffers, while its trie has blocks that were never computed.',
       remove_when='sequence_length of such an answer is the length of the prompt')
def note_cancellation(original):

    def cancel(self, session_id):
        tokens = getattr(self.tm_model, 'virtual_tokens', None)
        if tokens is not None:
            tokens.cancelled(session_id)
        return original(self, session_id)

    return cancel
