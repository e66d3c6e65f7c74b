"""Which device an engine runs on, and how many threads it takes there."""
import functools
import logging

import psutil
import torch

from lmdeploy_ext.config import Settings

logger = logging.getLogger(__name__)

MAX_BATCH_SIZE = 64  # sequences; a CPU gains nothing from more


def runs_on_cpu(device_type: str) -> bool:
    """Whether an engine that is asked for `device_type` runs on the CPU: where that is `cpu`, and
    where it is `cuda`, which is upstream's default, on a machine without a GPU."""
    # NVML counts the devices, where it can: `torch.cuda.is_available` would initialise CUDA,
    # which then fails in the server process that `lmdeploy.serve` forks.
    return device_type == 'cpu' or (device_type == 'cuda' and torch.cuda.device_count() == 0)


def resolve_device(device_type: str) -> str:
    """The device that an engine really runs on; the first time that it is another than the one
    asked for, one WARNING says so."""
    if not runs_on_cpu(device_type):
        return device_type
    if device_type != 'cpu':
        _warn_about_cpu()
    return 'cpu'


def apply_thread_count(settings: Settings) -> int:
    """Set the number of threads of one torch operation; returns it.

    Without a setting it is torch's own choice (which knows `OMP_NUM_THREADS`), but never more
    than the cores that this process may use.
    """
    usable = len(psutil.Process().cpu_affinity())
    threads = settings.cpu_threads or min(torch.get_num_threads(), usable)
    torch.set_num_threads(threads)
    return threads


@functools.lru_cache(maxsize=None)
def _warn_about_cpu():
    logger.warning('No GPU found: LMDeploy runs with its PyTorch engine on the CPU, in float32; '
                   'that is for development and small models.')
