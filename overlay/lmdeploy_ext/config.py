"""Every environment variable that lmdeploy-ext reads, in one place. Standard library only.

Command-line flags live in the scripts that define them; nothing else reads `os.environ`.
"""
import math
import os
from dataclasses import dataclass
from typing import Mapping, Optional

PREFIX = 'LMDEPLOY_EXT_'


class SettingError(ValueError):
    """A setting has a value that cannot be used; the message says which and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """Settings of one process.

    Attributes:
        patches: `LMDEPLOY_EXT_PATCHES`, which patches to apply: `all`, `none`, groups or names,
            comma separated, `-name` to leave one out.
        cpu_kv_gb: `LMDEPLOY_EXT_CPU_KV_GB`, GiB of memory for the KV cache of the CPU backend.
            Without it: half of the free memory, 4 GiB at most.
        cpu_threads: `LMDEPLOY_EXT_CPU_THREADS`, torch threads of the CPU backend. Without it:
            the cores that this process may use.
    """
    patches: str = 'all'
    cpu_kv_gb: Optional[float] = None
    cpu_threads: Optional[int] = None

    @classmethod
    def from_env(cls, env: Optional[Mapping[str, str]] = None) -> 'Settings':
        """Read the settings from `env` (default: this process's environment)."""
        env = os.environ if env is None else env
        return cls(patches=env.get(PREFIX + 'PATCHES', 'all'),
                   cpu_kv_gb=_positive(env, 'CPU_KV_GB', float),
                   cpu_threads=_positive(env, 'CPU_THREADS', int))


def api_key(env: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """`LMDEPLOY_EXT_API_KEY`, what an api_server asks of its clients; None where it is not set.

    Not one of the `Settings`: those are written to logs and results.
    """
    env = os.environ if env is None else env
    return env.get(PREFIX + 'API_KEY') or None


def _positive(env: Mapping[str, str], name: str, kind: type):
    """The variable as a positive number, or None where it is not set."""
    text = env.get(PREFIX + name, '').strip()
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise SettingError(f'{PREFIX}{name}={text!r} is not a positive {kind.__name__}; '
                           f'set it to one, or unset it for the default')
    return value
