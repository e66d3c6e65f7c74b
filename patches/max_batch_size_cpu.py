"""The default batch size of the CPU."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.utils:get_max_batch_size',
       group='cpu',
       upstream={
           '1870e460e201e729': '0.6.0 to 0.6.1',
           'ca55d6982419dfc2': '0.6.2 to 0.6.4',
       },
       why='It asserts a known device and asks the CUDA driver for the name of the GPU.',
       remove_when="get_max_batch_size('cpu') returns a number")
def batch_on_cpu(original):

    def get_max_batch_size(device_type):
        from lmdeploy_ext.pytorch.device import MAX_BATCH_SIZE, runs_on_cpu
        return MAX_BATCH_SIZE if runs_on_cpu(device_type) else original(device_type)

    return get_max_batch_size
