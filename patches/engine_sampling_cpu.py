"""Sampling without a transfer to a GPU."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine.async_sampling_logits',
       group='cpu',
       upstream={'86b665c8eadbade2': '0.6.0 to 0.6.1'},
       why='Up to 0.6.1 it moves the logits to the GPU.',
       remove_when='LMDeploy 0.6.1 and older are not supported any more')
def sample_on_cpu(original):
    from lmdeploy_ext.pytorch.retarget import TO_CPU, retarget
    on_cpu = retarget(original, TO_CPU)

    def async_sampling_logits(self, *args, **kwargs):
        sample = on_cpu if self.engine_config.device_type == 'cpu' else original
        return sample(self, *args, **kwargs)

    return async_sampling_logits
