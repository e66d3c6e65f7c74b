"""The request of an image that cannot be encoded gets the reason."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.engine:ImageEncoder.async_infer',
       group='correctness',
       upstream={'1a288caff8fd0893': '0.6.0 to 0.6.4'},
       why='It returns whatever the encoder puts into its queue: the failure that '
       'image_encoder_forward_isolate puts there has to be raised here.',
       remove_when='image_encoder_forward_isolate is removed')
def raise_failed_image(original):
    from lmdeploy_ext.vl.failure import raise_failure

    async def async_infer(self, inputs, params=None):
        return raise_failure(await original(self, inputs, params))

    return async_infer
