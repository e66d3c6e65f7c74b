"""The engine's outputs without a CUDA stream."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine._make_infer_outputs',
       group='cpu',
       upstream={'43d090c46cfdad63': '0.6.4'},
       why='Since 0.6.4 it waits for a CUDA event on a CUDA stream.',
       remove_when='Engine._make_infer_outputs does not name torch.cuda')
def answer_on_cpu(original):
    from lmdeploy_ext.pytorch.retarget import TO_CPU, retarget
    on_cpu = retarget(original, TO_CPU)

    def _make_infer_outputs(self, *args, **kwargs):
        answer = on_cpu if self.engine_config.device_type == 'cpu' else original
        return answer(self, *args, **kwargs)

    return _make_infer_outputs
