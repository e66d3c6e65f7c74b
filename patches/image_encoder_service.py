"""Images of all requests are encoded in shared batches."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.engine:ImageEncoder.__init__',
       group='speed',
       upstream={'d86a4bc6aaf79753': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.vl.engine:ImageEncoder.async_infer':
           {'1a288caff8fd0893': '0.6.0 to 0.6.4'},
           'lmdeploy.vl.engine:ImageEncoder._create_thread_safe_task':
           {'d2e5364ebe06b343': '0.6.0 to 0.6.4'},
           'lmdeploy.serve.vl_async_engine:VLAsyncEngine._get_prompt_input':
           {
               '10532d99e713ea49': '0.6.0',
               '76c53c947b1b7e86': '0.6.1',
               '49b4c582dd9547be': '0.6.2 to 0.6.2.post1',
               '309e36ab85ac8caf': '0.6.3 to 0.6.4',
           },
       },
       why='One image at a time runs through preprocessing and vision model, one after the other, '
       'in a loop that polls every 10 ms: on an H200 31.9 s of the 32.9 s of a run. Its features '
       'go through host memory on the event loop.',
       # it cuts tiles as that patch does, and an image that fails ends its request in `generate`,
       # which upstream's batches and streams do not survive
       needs=('internvl_forward_tiles', 'batch_infer_errors', 'stream_infer_errors'),
       remove_when='upstream batches the tiles of different requests while it prepares others')
def serve_images(original):
    import dataclasses
    import weakref

    from lmdeploy.messages import VisionConfig

    from lmdeploy_ext.vision.build import build_service

    def __init__(self, model_path, vision_config=None, backend_config=None):
        asked = vision_config or VisionConfig()
        # without a thread that polls: the service needs none, and works from every event loop
        original(self, model_path, dataclasses.replace(asked, thread_safe=False), backend_config)
        self.vision_config = asked
        self.service = None
        if getattr(self.model.forward, 'takes_tiles', False):  # internvl_forward_tiles is on
            self.service = build_service(self.model, backend_config)
        if self.service is not None:
            self.async_infer = self.service.async_infer
            self.infer = self.forward = self.service.infer
            # Its threads and the model's memory go with this encoder. At the interpreter's end the
            # scheduler closes itself, and waits for no batch that never ends.
            weakref.finalize(self, self.service.close).atexit = False
        elif asked.thread_safe:
            self._create_thread_safe_task()

    return __init__
