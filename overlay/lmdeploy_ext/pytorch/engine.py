"""What an engine on the CPU does before it starts, and right after."""
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


def limit_sessions(engine: Any):
    """Let no session outgrow the KV cache.

    A decoding loop allocates `prefill_interval` tokens ahead, and a session that these do not fit
    is taken out of the running ones: with nothing to evict, stock LMDeploy never runs it again,
    nor anything behind it (up to 0.6.3), or ends the engine (0.6.4). An answer that reaches the
    limit ends there, as at `session_len`; a prompt that leaves no room for one gets an empty
    answer.

    Args:
        engine: upstream's `Engine`, its KV cache allocated.
    """
    cache, scheduler = engine.cache_config, engine.scheduler_config
    held = cache.num_gpu_blocks * cache.block_size - scheduler.prefill_interval
    scheduler.max_session_len = min(held, scheduler.max_session_len or held)
    if hasattr(engine, 'max_session_len'):  # since 0.6.4, a copy
        engine.max_session_len = scheduler.max_session_len


def skip_check(*args, **kwargs):
    """In the place of upstream's `check_env` and `check_model`, which try out CUDA, Triton, AWQ
    kernels and the GPU's bfloat16, and end the process where one is missing."""
