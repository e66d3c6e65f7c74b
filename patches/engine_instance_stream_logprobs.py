"""Log-probabilities in the answers of the PyTorch engine, for callers without an event loop."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine_instance:EngineInstance.stream_infer',
       group='cpu',
       upstream={'3ed991cd5abafea6': '0.6.0 to 0.6.4'},
       why='With thread_safe=True it does not pass through async_stream_infer, '
       'which engine_instance_logprobs patches.',
       remove_when='engine_instance_logprobs is removed')
def record_logprobs_of_stream(original):

    def stream_infer(self, session_id, input_ids, gen_config=None, *args, **kwargs):
        from lmdeploy_ext.pytorch.logprobs import record_logprobs
        gen_config, recorder = record_logprobs(gen_config, self.engine)
        for output in original(self, session_id, input_ids, gen_config, *args, **kwargs):
            if recorder is not None:
                output.logprobs = recorder.records(output.token_ids)
            yield output

    return stream_infer
