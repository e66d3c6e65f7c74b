"""`/v1/chat/completions` tells how much of the prompt came from the prefix cache."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.openai.api_server:chat_completions_v1',
       group='speed',
       upstream={
           '11b2ed2a6e80eb85': '0.6.0 to 0.6.1',
           '27d28ec237874a8b': '0.6.2',
           '200c2eec9721de99': '0.6.2.post1 to 0.6.3',
           '1f8533c844698d46': '0.6.4',
       },
       why='usage lacks prompt_tokens_details.cached_tokens, by which OpenAI\'s clients see what '
       'prefix caching does. The route calls it through the seam api_server_image_errors.',
       needs=('generate_cached_tokens', ),
       remove_when='usage of a repeated request has prompt_tokens_details')
def tell_cached_tokens(original):
    from lmdeploy_ext.serve.usage import with_cached_tokens

    async def chat_completions_v1(request, raw_request=None):
        return await with_cached_tokens(original, request, raw_request)

    return chat_completions_v1
