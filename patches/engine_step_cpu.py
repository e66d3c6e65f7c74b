"""The engine's step without transfers to a GPU."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine._async_step_background',
       group='cpu',
       upstream={
           '720c2f08a74c8c72': '0.6.0 to 0.6.3',
           '6d521f3183f999c2': '0.6.4',
       },
       why="It moves every input to 'cuda' and, since 0.6.4, records CUDA events.",
       remove_when='Engine._async_step_background does not name cuda')
def step_on_cpu(original):
    from lmdeploy_ext.pytorch.retarget import TO_CPU, retarget
    on_cpu = retarget(original, TO_CPU)

    async def _async_step_background(self, *args, **kwargs):
        step = on_cpu if self.engine_config.device_type == 'cpu' else original
        return await step(self, *args, **kwargs)

    return _async_step_background
