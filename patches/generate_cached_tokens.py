"""What an `AsyncEngine` yields tells how much of the prompt came from the prefix cache."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.async_engine:AsyncEngine.generate',
       group='speed',
       upstream={
           '1efa99f56152ab53': '0.6.0',
           '4b526779e321641d': '0.6.1',
           '63afbcdf2be3ff99': '0.6.2 to 0.6.4',
       },
       guards={
           # its ids tell the requests of a session apart
           'lmdeploy.pytorch.engine.request:RequestSender': {'8c4880daf6e0f7a1': '0.6.0 to 0.6.4'},
       },
       why='Nothing tells a client whether prefix caching did anything for its request: neither '
       'GenOut, nor Response, nor usage.',
       remove_when='GenOut of upstream has the number of cached tokens')
def tell_cached_tokens(original):
    from contextlib import aclosing

    from lmdeploy_ext.serve import cached_tokens

    async def generate(self, *args, **kwargs):
        # closed with this one: `async for` alone would leave that to the garbage collector
        async with aclosing(cached_tokens.generate(original, self, *args, **kwargs)) as outputs:
            async for output in outputs:
                yield output

    return generate
