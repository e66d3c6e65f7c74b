"""The operators of the CPU backend."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.backends.selector:get_backend',
       group='cpu',
       upstream={
           'edebb2ed72037e3b': '0.6.0 to 0.6.1',
           '8039128f563e479f': '0.6.2 to 0.6.4',
       },
       guards={
           'lmdeploy.pytorch.backends.attention:AttentionImpl.__init__':
           {'04fa84dedc9495ee': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.backends.attention:AttentionMetadata':
           {
               '53799aafa028d3dc': '0.6.0 to 0.6.1',
               'e8fbee64a855c739': '0.6.2 to 0.6.4',
           },
           'lmdeploy.pytorch.backends.default.awq_modules:dequantize_gemm':
           {'1ba91a8616d13e49': '0.6.0 to 0.6.4'},
           'lmdeploy.pytorch.backends.default.op_backend:DefaultOpsBackend':
           {'7f9691c1ac663e61': '0.6.0 to 0.6.4'},
       },
       why='Operators are chosen by device_type, and none are for the CPU: '
       'the default backend lacks attention and ignores random_seed.',
       remove_when="get_backend returns a class with OpType.Attention under DeviceContext('cpu')")
def select_cpu_operators(original):

    def get_backend():
        from lmdeploy.pytorch.devices import get_device_manager
        if get_device_manager().current_context().device_type != 'cpu':
            return original()
        from lmdeploy_ext.pytorch.backend import CpuOpsBackend
        return CpuOpsBackend

    return get_backend
