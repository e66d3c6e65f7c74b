"""The size of the KV cache: settings, free memory, limits of a container."""
from types import SimpleNamespace

import psutil
import pytest

from lmdeploy_ext.config import Settings
from lmdeploy_ext.pytorch.memory import GIB, count_blocks, free_memory

HUGE = 9223372036854771712  # what the kernel writes for "no limit"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A file system with control groups, on a machine with 10 GiB of free memory."""
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: SimpleNamespace(available=10 * GIB))

    def write(files):
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'{text}\n')
        return tmp_path

    return write


def version2(folder, maximum, current, idle):
    folder = f'sys/fs/cgroup/{folder}'
    return {f'{folder}/memory.max': maximum, f'{folder}/memory.current': current,
            f'{folder}/memory.stat': f'anon 5\ninactive_file {idle}'}


def version1(folder, maximum, current, idle):
    folder = f'sys/fs/cgroup/memory/{folder}'
    return {f'{folder}/memory.limit_in_bytes': maximum, f'{folder}/memory.usage_in_bytes': current,
            f'{folder}/memory.stat': f'inactive_file 1\ntotal_inactive_file {idle}'}


@pytest.mark.parametrize('free, blocks', [(2 * GIB, 1024), (100 * GIB, 4096)])
def test_half_of_the_free_memory_up_to_4_gib(free, blocks):
    assert count_blocks(1 << 20, Settings(), free) == blocks


def test_the_setting_decides():
    assert count_blocks(1 << 20, Settings(cpu_kv_gb=0.5), free=GIB // 10) == 512


@pytest.mark.parametrize('settings, found', [(Settings(), '0.500 GiB'),
                                             (Settings(cpu_kv_gb=0.25), '0.250 GiB')])
def test_less_than_16_blocks_is_an_error_in_one_sentence(settings, found):
    message = (f'16 blocks of KV cache, the least that an engine runs with, take 1.000 GiB, but '
               f'only {found} may be used for it; free memory, set LMDEPLOY_EXT_CPU_KV_GB')
    with pytest.raises(RuntimeError, match=message):
        count_blocks(GIB // 16, settings, free=GIB)


def test_a_machine_without_control_groups(machine):
    assert free_memory(machine({})) == 10 * GIB


def test_version_2_counts_every_group_on_the_way_up(machine):
    root = machine({'proc/self/cgroup': '0::/pod/container',
                    **version2('pod', 8 * GIB, 7 * GIB, GIB // 2),
                    **version2('pod/container', 4 * GIB, GIB, 0)})
    assert free_memory(root) == 1.5 * GIB


def test_version_2_without_a_limit(machine):
    root = machine({'proc/self/cgroup': '0::/', **version2('', 'max', 7 * GIB, 0)})
    assert free_memory(root) == 10 * GIB


def test_version_1_inside_a_container_that_sees_the_path_of_its_host(machine):
    root = machine({'proc/self/cgroup': '5:cpu:/x\n4:memory:/docker/4711\n0::/',
                    **version1('', 3 * GIB, 2 * GIB, GIB // 4)})
    assert free_memory(root) == 1.25 * GIB


def test_version_1_without_a_limit(machine):
    root = machine({'proc/self/cgroup': '4:memory:/', **version1('', HUGE, GIB, 0)})
    assert free_memory(root) == 10 * GIB
