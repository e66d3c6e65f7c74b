"""`PytorchEngineConfig(device_type='cpu')`, and the CPU where there is no GPU."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.messages:PytorchEngineConfig.__post_init__',
       group='cpu',
       upstream={
           'd543c3d624d36b40': '0.6.0',
           '3ebc8bb2f1033b3c': '0.6.1',
           'd295f24ba118b781': '0.6.2 to 0.6.3',
           '6f8f27f066926f6f': '0.6.4',
       },
       why="It refuses device_type='cpu', and its default 'cuda' fails late without a GPU.",
       remove_when="PytorchEngineConfig(device_type='cpu') raises no AssertionError")
def accept_cpu(original):
    from lmdeploy_ext.pytorch.device import resolve_device

    def __post_init__(self):
        device_type = resolve_device(self.device_type)
        if device_type != 'cpu':
            original(self)
            return
        self.device_type = 'cuda'  # all other checks still hold
        original(self)
        self.device_type = device_type

    return __post_init__
