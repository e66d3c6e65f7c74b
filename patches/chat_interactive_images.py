"""Images of `/v1/chat/interactive` are read by the worker threads."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.openai.api_server:chat_interactive_v1',
       group='speed',
       upstream={
           '685f02580f27d3ed': '0.6.0 to 0.6.1',
           '10e0f96166b0adfc': '0.6.2',
           'd028c362f0c48cea': '0.6.2.post1 to 0.6.4',
       },
       why='It loads images on the event loop: a URL that answers after ten seconds stops every '
       'other request for as long. The route calls it through the seam api_server_image_errors.',
       remove_when='chat_interactive_v1 does not call load_image')
def read_images_elsewhere(original):
    from lmdeploy_ext.serve.interactive import leave_images_to_loader

    async def chat_interactive_v1(request, raw_request=None):
        from lmdeploy.serve.openai.api_server import VariableInterface
        leave_images_to_loader(request, VariableInterface.async_engine)
        return await original(request, raw_request)

    return chat_interactive_v1
