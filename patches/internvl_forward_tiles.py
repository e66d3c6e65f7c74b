"""InternVL's vision model takes tiles that are ready."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.model.internvl:InternVLVisionModel.forward',
       group='speed',
       upstream={'1251ab4179842419': '0.6.0 to 0.6.4'},
       guards={
           'lmdeploy.vl.model.internvl:InternVLVisionModel.build_model':
           {
               '7391e3de2263371c': '0.6.0 to 0.6.2.post1',
               '3fc6c05031de873e': '0.6.3 to 0.6.4',
           },
           'lmdeploy.vl.model.internvl:InternVLVisionModel._forward_v1_5':
           {'502b96627b4378ec': '0.6.0 to 0.6.4'},
           'lmdeploy.vl.model.internvl:InternVLVisionModel._preprocess_v1_5':
           {'1650a77a72b3929b': '0.6.0 to 0.6.4'},
       },
       why='It resizes, cuts and normalises in the thread that runs the model, and sends floats '
       'to the GPU, four times the bytes of pixels.',
       remove_when='vl_engine_image_loader is removed')
def encode_tiles(original):
    import torch

    from lmdeploy_ext.vl.internvl import encode, loader_of

    @torch.no_grad()
    def forward(self, images, params=None):
        if loader_of(self) is None:
            return original(self, images, params)
        return encode(self, images, params)

    forward.takes_tiles = True
    return forward
