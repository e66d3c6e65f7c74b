"""An image that cannot be encoded fails its own request."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.engine:ImageEncoder.forward',
       group='correctness',
       upstream={'90c333ff108bba79': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.vl.engine:ImageEncoder._forward_loop':
           {'1ce504839c30c190': '0.6.0 to 0.6.4'},
       },
       why='An exception here ends the loop that all image requests wait for: '
       'they hang until the server is restarted.',
       remove_when='after a request with {"detail": ["high"]} the next image request is answered')
def isolate_failing_image(original):
    from lmdeploy_ext.vl.failure import encode_each

    def forward(self, inputs, params=None):
        return encode_each(lambda *batch: original(self, *batch), inputs, params)

    return forward
