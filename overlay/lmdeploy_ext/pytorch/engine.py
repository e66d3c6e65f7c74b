"""What an engine does before it starts on the CPU."""
import logging
from typing import Any

from lmdeploy_ext.config import Settings

from .device import apply_thread_count
from .limits import refuse_unsupported_settings

logger = logging.getLogger(__name__)


def prepare_cpu_engine(engine_config: Any):
    """Check the configuration and set the number of threads.

    Args:
        engine_config: a `PytorchEngineConfig` with `device_type='cpu'`.

    Raises:
        UnsupportedOnCpu: a setting needs a GPU.
    """
    refuse_unsupported_settings(engine_config)
    logger.info('the CPU backend runs with %d threads', apply_thread_count(Settings.from_env()))


def skip_check(*args, **kwargs):
    """In the place of upstream's `check_env` and `check_model`, which try out CUDA, Triton, AWQ
    kernels and the GPU's bfloat16, and end the process where one is missing."""
