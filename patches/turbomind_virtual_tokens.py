"""TurboMind's prefix cache knows images."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.turbomind.turbomind:TurboMind.__init__',
       group='speed',
       upstream={
           '0a5ef7a83940954f': '0.6.0',
           '1abd1e2eacc0cdae': '0.6.1 to 0.6.4',
       },
       why='TurboMind never matches a prompt with input_embeddings against its prefix cache '
       '(LlamaBatch.cc, ProcessInferRequests), so no prompt with an image is ever cached; and '
       'features go to it through host memory.',
       needs=('turbomind_capture_table', 'turbomind_async_stream', 'turbomind_stream_penalties',
              'turbomind_cancel'),
       remove_when='TurboMind matches prompts with input_embeddings against its prefix cache')
def add_virtual_tokens(original):

    def __init__(self, *args, **kwargs):
        from lmdeploy_ext.turbomind.build import build_virtual_tokens
        original(self, *args, **kwargs)
        self.virtual_tokens = build_virtual_tokens(self)

    return __init__
