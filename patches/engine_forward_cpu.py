"""The forward pass in a thread of its own."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine._async_model_forward',
       group='cpu',
       upstream={
           '57cf5ac955eac66d': '0.6.0',
           '37164f7c32dc6b3c': '0.6.1 to 0.6.4',
       },
       guards={
           'lmdeploy.pytorch.model_inputs:ModelInputs.split':
           {
               'ed6755ed7b3de127': '0.6.0',
               '256e5514f6b156bc': '0.6.1',
               '64e01e33c8facf23': '0.6.2 to 0.6.4',
           },
       },
       why='On a CPU the forward pass runs when it is called: the event loop would stand still, '
       'with HTTP and image requests in it (95 ms of lag against 29 ms).',
       remove_when='Engine._async_model_forward awaits an executor for the forward pass')
def forward_on_cpu(original):

    async def _async_model_forward(self, inputs, swap_in_map, swap_out_map, return_logits):
        if self.engine_config.device_type != 'cpu':
            return await original(self, inputs, swap_in_map, swap_out_map, return_logits)
        if swap_in_map or swap_out_map:
            raise RuntimeError('the CPU backend has one KV cache and swaps nothing')
        return dict(logits=await self.model_agent.async_logits(inputs, return_logits))

    return _async_model_forward
