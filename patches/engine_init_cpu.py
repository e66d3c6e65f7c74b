"""The engine's constructor without CUDA streams and driver checks."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine.__init__',
       group='cpu',
       upstream={
           'c3a50c70420f207a': '0.6.0',
           '4bb3da3191de3fcd': '0.6.1',
           'c72d31ffd7fa3e99': '0.6.2 to 0.6.3',
           '0b50a2d1e1cf683e': '0.6.4',
       },
       guards={
           'lmdeploy.pytorch.engine.engine:Engine._on_add_message':
           {
               'bbd5564c1f3ff396': '0.6.0',
               '82021e0d017a08cc': '0.6.1',
               '02bef1324f2ae814': '0.6.2 to 0.6.3',
               '1374193b24623cc9': '0.6.4',
           },
       },
       why='It creates CUDA streams, and check_env and check_model end the process without a GPU.',
       remove_when="Engine(path, PytorchEngineConfig(device_type='cpu')) starts on stock LMDeploy")
def start_on_cpu(original):
    from lmdeploy_ext.pytorch.engine import limit_sessions, prepare_cpu_engine, skip_check
    from lmdeploy_ext.pytorch.retarget import TO_CPU, retarget
    on_cpu = retarget(original, TO_CPU, dict(check_env=skip_check, check_model=skip_check))

    def __init__(self, model_path, engine_config=None, trust_remote_code=True):
        from lmdeploy.messages import PytorchEngineConfig
        engine_config = engine_config or PytorchEngineConfig()
        if engine_config.device_type != 'cpu':
            original(self, model_path, engine_config, trust_remote_code)
            return
        prepare_cpu_engine(engine_config)
        on_cpu(self, model_path, engine_config, trust_remote_code)
        limit_sessions(self)

    return __init__
