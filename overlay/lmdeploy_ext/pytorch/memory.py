"""How much memory the KV cache may take."""
from pathlib import Path
from typing import Iterator, Optional

import psutil

from lmdeploy_ext.config import Settings

GIB = 1 << 30
DEFAULT_GIB = 4
MIN_BLOCKS = 16  # as upstream wants on a GPU
# where control groups are mounted, and in the folder of each: limit, use, unused page cache
_VERSION_1 = ('sys/fs/cgroup/memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes',
              'total_inactive_file')
_VERSION_2 = ('sys/fs/cgroup', 'memory.max', 'memory.current', 'inactive_file')


def count_blocks(block_bytes: int, settings: Settings, free: Optional[int] = None) -> int:
    """The number of KV blocks that the budget holds.

    Args:
        block_bytes: bytes of one block, keys and values of all layers.
        settings: `cpu_kv_gb` is the budget; without it: half of the free memory, 4 GiB at most.
        free: bytes of free memory; default: those of this process.

    Raises:
        RuntimeError: the budget holds less than 16 blocks.
    """
    if settings.cpu_kv_gb is not None:
        budget = int(settings.cpu_kv_gb * GIB)
    else:
        budget = min(DEFAULT_GIB * GIB, (free_memory() if free is None else free) // 2)
    blocks = budget // block_bytes
    if blocks < MIN_BLOCKS:
        raise RuntimeError(f'{MIN_BLOCKS} blocks of KV cache, the least that an engine runs with, '
                           f'take {MIN_BLOCKS * block_bytes / GIB:.3f} GiB, but only '
                           f'{budget / GIB:.3f} GiB may be used for it; free memory, '
                           'set LMDEPLOY_EXT_CPU_KV_GB or a smaller block_size')
    return blocks


def free_memory(root: Path = Path('/')) -> int:
    """Bytes that this process can still take: what the machine has, and what its control groups
    (a container's limit) leave of it.

    Args:
        root: where `proc` and `sys` are.
    """
    return min([psutil.virtual_memory().available, *_left_in_control_groups(root)])


def _left_in_control_groups(root: Path) -> Iterator[int]:
    """Bytes left below the limit of each control group that this process is in.

    Page cache that nobody uses counts as free, since the kernel drops it first.
    """
    for line in _read(root / 'proc/self/cgroup').splitlines():
        _, controllers, path = line.split(':', 2)
        if controllers and 'memory' not in controllers.split(','):
            continue
        mount, limit, used, unused = _VERSION_1 if controllers else _VERSION_2
        group = Path(path.strip('/'))
        for folder in (root / mount / part for part in [group, *group.parents]):
            maximum = _read(folder / limit).strip()
            if maximum.isdecimal():
                stat = dict(row.split() for row in _read(folder / 'memory.stat').splitlines())
                yield int(maximum) - int(_read(folder / used)) + int(stat.get(unused, 0))


def _read(path: Path) -> str:
    """The text of a file of the kernel's, empty where this system has none."""
    return path.read_text() if path.is_file() else ''
