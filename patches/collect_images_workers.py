"""The images of a request go to the worker threads, and come back as tiles."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.templates:VLChatTemplateWrapper.async_collect_pil_images',
       group='speed',
       upstream={'0ce4ef4740edc8a6': '0.6.0 to 0.6.4'},
       why='It decodes with Pillow in the default executor, which the vision model runs in too; '
       'an image without url or data is only logged, and the next image takes its place.',
       remove_when='vl_engine_image_loader is removed')
def collect_with_loader(original):
    from lmdeploy_ext.vl.messages import images_of

    async def async_collect_pil_images(self, messages):
        loader = getattr(self, 'image_loader', None)
        if loader is None:
            return await original(self, messages)
        references, options = images_of(messages)
        images = await loader.load(references, options)
        return [[image, option] for image, option in zip(images, options)]

    async_collect_pil_images.uses_loader = True
    return async_collect_pil_images
