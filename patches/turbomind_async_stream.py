"""Requests enter TurboMind with virtual tokens for their images."""
from lmdeploy_ext.patching import patch

_MODULE = 'lmdeploy.turbomind.turbomind'


@patch(target=f'{_MODULE}:TurboMindInstance.async_stream_infer',
       group='speed',
       upstream={
           '2304f2c8d908aed7': '0.6.0',
           '2842c691d311f47a': '0.6.1 to 0.6.4',
       },
       guards={
           # sets `future` to the call that returns when the sequence has ended
           f'{_MODULE}:TurboMindInstance._async_forward_thread':
           {
               '1a3f6ca6e0adc759': '0.6.0',
               '36e3d7b4ac610b45': '0.6.1 to 0.6.3',
               '86c04c82d8fd322b': '0.6.4',
           },
       },
       why='This is the last place where a request is known with its session, images and options '
       'before TurboMind has it, and the first where its end is.',
       remove_when='TurboMind matches prompts with input_embeddings against its prefix cache')
def stream_with_virtual_tokens(original):
    from contextlib import aclosing

    async def async_stream_infer(self, session_id, input_ids, input_embeddings=None,
                                 input_embedding_ranges=None, sequence_start=True,
                                 sequence_end=False, step=0, stop=False, gen_config=None,
                                 stream_output=False, **kwargs):
        from lmdeploy_ext.turbomind.passage import Prompt
        from lmdeploy_ext.turbomind.stream import async_stream
        options = dict(kwargs, sequence_start=sequence_start, sequence_end=sequence_end, step=step,
                       stop=stop, gen_config=gen_config, stream_output=stream_output)
        prompt = Prompt(input_ids, input_embeddings, input_embedding_ranges)
        # closed with this one: `async for` alone would leave that to the garbage collector
        async with aclosing(async_stream(original, self, session_id, prompt, options)) as outputs:
            async for output in outputs:
                yield output

    async_stream_infer.takes_device_features = True
    return async_stream_infer
