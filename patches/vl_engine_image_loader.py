"""InternVL's images are prepared by worker threads."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.serve.vl_async_engine:VLAsyncEngine.__init__',
       group='speed',
       upstream={'e26b06875afb19dd': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.serve.vl_async_engine:VLAsyncEngine._get_prompt_input':
           {
               '10532d99e713ea49': '0.6.0',
               '76c53c947b1b7e86': '0.6.1',
               '49b4c582dd9547be': '0.6.2 to 0.6.2.post1',
               '309e36ab85ac8caf': '0.6.3 to 0.6.4',
           },
       },
       why='One thread resizes and cuts all images, about 115 ms for one of 612x464, while the '
       'GPU waits. Here the engine gets a pool of threads for that.',
       # an unreadable image ends its request in `generate` now, which upstream's batches and
       # streams do not survive
       needs=('batch_infer_errors', 'stream_infer_errors'),
       remove_when='upstream prepares images in several threads, beside the vision model')
def give_image_loader(original):
    from lmdeploy_ext.vl.internvl import loader_of

    def __init__(self, model_path, **kwargs):
        original(self, model_path, **kwargs)
        vision, template = self.vl_encoder.model, self.vl_prompt_template
        if not getattr(template.async_collect_pil_images, 'uses_loader', False):
            return  # collect_images_workers is off
        # image_encoder_service reads images itself; where it is off, internvl_forward_tiles takes
        # what the loader has prepared
        service = getattr(self.vl_encoder, 'service', None)
        if service is not None:
            template.image_loader = service
        elif getattr(vision.forward, 'takes_tiles', False):
            template.image_loader = loader_of(vision)

    return __init__
