"""The image encoder on the CPU, in float32."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.model.builder:load_vl_model',
       group='cpu',
       upstream={
           'ec978c01db877976': '0.6.0 to 0.6.2.post1',
           '364043871aabf8c5': '0.6.3 to 0.6.4',
       },
       guards={
           'lmdeploy.vl.model.internvl:InternVLVisionModel.build_model':
           {
               '7391e3de2263371c': '0.6.0 to 0.6.2.post1',
               '3fc6c05031de873e': '0.6.3 to 0.6.4',
           },
           'lmdeploy.vl.model.internvl:InternVLVisionModel._forward_v1_5':
           {'502b96627b4378ec': '0.6.0 to 0.6.4'},
           'lmdeploy.vl.model.internvl:InternVLVisionModel._forward':
           {'6d2f421c47edc23b': '0.6.0 to 0.6.4'},
       },
       why='It asks the CUDA driver for free memory and loads in fp16, '
       'in which a ViT is 7 to 15 times slower on a CPU.',
       remove_when="load_vl_model with PytorchEngineConfig(device_type='cpu') loads in float32")
def load_on_cpu(original):

    def load_vl_model(model_path, with_llm=False, backend_config=None):
        if with_llm or getattr(backend_config, 'device_type', None) != 'cpu':
            return original(model_path, with_llm, backend_config)
        from lmdeploy_ext.pytorch.vision import load_cpu_vision_model
        return load_cpu_vision_model(model_path, backend_config)

    return load_vl_model
