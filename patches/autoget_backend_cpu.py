"""Without a GPU, the PyTorch engine: TurboMind has no CPU backend."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.archs:autoget_backend',
       group='cpu',
       upstream={'3e6c42fa787cbc5d': '0.6.0 to 0.6.4'},
       why='It chooses TurboMind for every model that TurboMind knows, also without a GPU.',
       remove_when="autoget_backend returns 'pytorch' for a Llama where torch sees no GPU")
def choose_pytorch_on_cpu(original):

    def autoget_backend(model_path):
        from lmdeploy_ext.pytorch.device import runs_on_cpu
        return 'pytorch' if runs_on_cpu('cuda') else original(model_path)

    return autoget_backend
