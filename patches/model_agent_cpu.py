"""The model and its KV cache in main memory, in float32."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.model_agent:build_model_agent',
       group='cpu',
       upstream={
           '63e93f03a063d4bc': '0.6.0',
           'a93cce3733528041': '0.6.1 to 0.6.4',
       },
       guards={
           'lmdeploy.pytorch.engine.model_agent:AutoModelAgent.__init__':
           {'4a6f040b8a89f9a9': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.engine.model_agent:BaseModelAgent._build_model':
           {
               'bcaa5ed8ae782b89': '0.6.0',
               '35eabf25bfb09afa': '0.6.1 to 0.6.4',
           },
           'lmdeploy.pytorch.engine.model_agent:model_forward':
           {
               '6614121c087776c5': '0.6.0',
               'eb67baed84ea4563': '0.6.1',
               'd4479155a7ce949a': '0.6.2 to 0.6.3',
               '16f3d91c198c55e9': '0.6.4',
           },
           'lmdeploy.pytorch.model_inputs:StepContext':
           {
               'a44e96eac0f5e6f5': '0.6.0',
               'd2344f166d6a4448': '0.6.1',
               '37cc20566786064a': '0.6.2 to 0.6.3',
               '8f6e620a52cf4690': '0.6.4',
           },
       },
       why="BaseModelAgent loads to 'cuda', asks the driver for free memory and creates streams.",
       remove_when="build_model_agent with BackendConfig(device_type='cpu') returns an agent")
def build_on_cpu(original):

    def build_model_agent(model_path, cache_config, backend_config, trust_remote_code, *args,
                          **kwargs):
        if backend_config.device_type != 'cpu':
            return original(model_path, cache_config, backend_config, trust_remote_code, *args,
                            **kwargs)
        from lmdeploy_ext.pytorch.agent import build_cpu_model_agent
        return build_cpu_model_agent(model_path, cache_config, backend_config, trust_remote_code,
                                     kwargs.get('custom_module_map'))

    return build_model_agent
