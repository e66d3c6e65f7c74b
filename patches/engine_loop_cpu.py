"""The engine's main loop without a CUDA stream."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine.async_loop',
       group='cpu',
       upstream={'dcb3169fecf4bdcf': '0.6.0 to 0.6.4'},
       why='It makes a CUDA stream the current one, which fails without a driver.',
       remove_when='Engine.async_loop does not name torch.cuda')
def loop_on_cpu(original):
    from lmdeploy_ext.pytorch.retarget import TO_CPU, retarget
    on_cpu = retarget(original, TO_CPU)

    async def async_loop(self):
        await (on_cpu if self.engine_config.device_type == 'cpu' else original)(self)

    return async_loop
