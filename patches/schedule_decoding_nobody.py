"""A decoding step for which nobody is left is no error."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.paging.scheduler:Scheduler._schedule_decoding',
       group='correctness',
       upstream={'d3196fee4c8db96f': '0.6.0 to 0.6.4'},
       why='Requests are taken in between the decision to decode and the step: where all running '
       'ones were cancelled, an assertion ends the engine, and every request after it hangs (2 of '
       '5 runs of 800 requests whose clients left halfway).',
       remove_when='schedule(is_prefill=False) with nobody running returns no sequences')
def schedule_nobody(original):

    def _schedule_decoding(self, prealloc_size=0):
        if not self.has_running():
            return [], {}, {}, {}  # the engine's loop goes on to the next step
        return original(self, prealloc_size)

    return _schedule_decoding
