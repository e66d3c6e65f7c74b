"""Repetition penalties and virtual tokens are never in TurboMind at the same time."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.turbomind.turbomind:TurboMindInstance.stream_infer',
       group='speed',
       upstream={
           '5365b9d323b7289e': '0.6.0',
           '3cfbd521ba1502aa': '0.6.1 to 0.6.4',
       },
       why='A repetition penalty of one request makes a kernel index logits by the prompt ids of '
       'all requests in the batch, unchecked (batchApplyRepetitionPenalty).',
       remove_when='that kernel skips ids that are not in the vocabulary')
def keep_penalties_apart(original):

    def stream_infer(self, *args, **kwargs):
        from lmdeploy_ext.turbomind.stream import stream
        yield from stream(original, self, *args, **kwargs)

    return stream_infer
