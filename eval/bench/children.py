"""Processes in which LMDeploy is as released and no library has threads of its own."""
import os
from typing import Dict

from lmdeploy_ext.patching.selection import VARIABLE

ONE_THREAD = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')


def stock_environment() -> Dict[str, str]:
    """This process's environment with patches off and one thread a library."""
    return {**os.environ, VARIABLE: 'none', **{name: '1' for name in ONE_THREAD}}
