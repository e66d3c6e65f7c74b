"""Where TurboMind's embedding table lies."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.turbomind.turbomind:TurboMind._get_model_params',
       group='speed',
       upstream={'dd7f86f8eb8876e8': '0.6.0 to 0.6.4'},
       why='Token ids can name rows of image features that lie a whole number of rows from the '
       'embedding table; its address is to be seen here only, before the weights are processed.',
       remove_when='TurboMind matches prompts with input_embeddings against its prefix cache')
def capture(original):

    def _get_model_params(self, model_comm, tm_params):
        from lmdeploy_ext.turbomind.build import capture_table
        original(self, model_comm, tm_params)
        if self.engine_config.enable_prefix_caching:
            self.captured_table = capture_table(tm_params)

    return _get_model_params
