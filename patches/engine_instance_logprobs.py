"""Log-probabilities in the answers of the PyTorch engine."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine_instance:EngineInstance.async_stream_infer',
       group='cpu',
       upstream={
           '11fbe9fbedf2856f': '0.6.0',
           '758f9ebd9034242a': '0.6.1',
           '58a83b1df347cd5d': '0.6.2 to 0.6.4',
       },
       guards={
           'lmdeploy.pytorch.engine.logits_process:_apply_custom_logits_processors':
           {'e5c0f5830b610202': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.engine.logits_process:FusedLogitsProcessor.__call__':
           {
               'eff02da413e44909': '0.6.0 to 0.6.1',
               '22f942dc2fff191c': '0.6.2 to 0.6.3',
               '43293fea0c868b7c': '0.6.4',
           },
           'lmdeploy.pytorch.engine.logits_process:SamplingInputs.to_device':
           {'0757d7c13a6cc843': '0.6.0 to 0.6.4'},
       },
       why='The PyTorch engine ignores GenerationConfig.logprobs, in-process and over HTTP.',
       remove_when='with logprobs=1, EngineOutput.logprobs of the PyTorch engine is a list')
def record_logprobs_of_stream(original):

    async def async_stream_infer(self, session_id, input_ids, gen_config=None, *args, **kwargs):
        from lmdeploy_ext.pytorch.logprobs import record_logprobs
        gen_config, recorder = record_logprobs(gen_config, self.engine)
        async for output in original(self, session_id, input_ids, gen_config, *args, **kwargs):
            if recorder is not None:
                output.logprobs = recorder.records(output.token_ids)
            yield output

    return async_stream_infer
