"""`/v1/completions` tells how much of the prompts came from the prefix cache."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.openai.api_server:completions_v1',
       group='speed',
       upstream={
           'd79e0de2192b698a': '0.6.0 to 0.6.1',
           'a2aa627513d90e62': '0.6.2 to 0.6.4',
       },
       why='As chat_completions_cached_tokens; the figures of several prompts are added up, as '
       'their other tokens are.',
       needs=('generate_cached_tokens', ),
       remove_when='chat_completions_cached_tokens is removed')
def tell_cached_tokens(original):
    from lmdeploy_ext.serve.usage import with_cached_tokens

    async def completions_v1(request, raw_request=None):
        return await with_cached_tokens(original, request, raw_request)

    return completions_v1
