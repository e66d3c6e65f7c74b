"""Where an engine runs, and that it is said once."""
import argparse
import logging
import subprocess
import sys

import pytest
import torch
from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.archs import autoget_backend, autoget_backend_config
from lmdeploy.cli.utils import ArgumentHelper
from lmdeploy.pytorch.backends import get_backend
from lmdeploy.pytorch.devices import DeviceContext, get_device_manager
from lmdeploy.utils import get_max_batch_size

from lmdeploy_ext.config import Settings
from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.pytorch import device
from lmdeploy_ext.pytorch.backend import CpuOpsBackend


@pytest.fixture
def gpus(monkeypatch):
    """Sets the number of GPUs that torch sees; the warning has not been given yet."""
    device._warn_about_cpu.cache_clear()
    return lambda number: monkeypatch.setattr(torch.cuda, 'device_count', lambda: number)


@pytest.fixture
def warnings(caplog):
    """Texts of our WARNING lines."""
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING
                    and r.name.startswith('lmdeploy_ext')]


def test_without_a_gpu_the_cpu_is_chosen_and_said_once(gpus, warnings):
    gpus(0)
    assert PytorchEngineConfig().device_type == 'cpu'
    assert PytorchEngineConfig(device_type='cuda').device_type == 'cpu'
    line, = warnings()
    assert 'No GPU found' in line and 'CPU' in line and '\n' not in line


def test_asking_for_the_cpu_needs_no_warning(gpus, warnings):
    gpus(0)
    assert PytorchEngineConfig(device_type='cpu').device_type == 'cpu'
    assert warnings() == []


def test_with_a_gpu_nothing_changes(gpus, warnings):
    gpus(1)
    assert PytorchEngineConfig().device_type == 'cuda'
    assert PytorchEngineConfig(device_type='cpu').device_type == 'cpu'
    assert PytorchEngineConfig(device_type='ascend').device_type == 'ascend'
    assert warnings() == []


@pytest.mark.parametrize('fields', [dict(tp=0), dict(cache_max_entry_count=2),
                                    dict(device_type='gpu')], ids=str)
def test_upstreams_other_checks_still_hold(fields):
    with pytest.raises(AssertionError):
        PytorchEngineConfig(**dict(dict(device_type='cpu'), **fields))


def test_batch_size(gpus):
    gpus(0)
    assert get_max_batch_size('cpu') == get_max_batch_size('cuda') == 64
    assert get_max_batch_size('ascend') == 16


def test_engine_is_pytorch_without_a_gpu(gpus, tmp_path, warnings):
    write_checkpoint(tmp_path, 'tiny')
    gpus(0)
    assert autoget_backend(str(tmp_path)) == 'pytorch'
    config = autoget_backend_config(str(tmp_path))
    assert isinstance(config, PytorchEngineConfig) and config.device_type == 'cpu'
    assert len(warnings()) == 1


def test_a_turbomind_config_is_converted_and_keeps_what_carries_over(gpus, tmp_path):
    write_checkpoint(tmp_path, 'tiny')
    gpus(0)
    given = TurbomindEngineConfig(session_len=4096, max_batch_size=3, cache_block_seq_len=128,
                                  enable_prefix_caching=True, cache_max_entry_count=0.3)
    config = autoget_backend_config(str(tmp_path), given)
    assert (config.device_type, config.session_len, config.max_batch_size) == ('cpu', 4096, 3)
    assert (config.block_size, config.enable_prefix_caching) == (128, True)


def test_with_a_gpu_upstream_chooses_the_engine(gpus, tmp_path):
    write_checkpoint(tmp_path, 'tiny')
    gpus(1)
    assert autoget_backend(str(tmp_path)) == autoget_backend.__wrapped__(str(tmp_path))


def test_command_line_offers_the_cpu():
    parser = argparse.ArgumentParser()
    ArgumentHelper.device(parser)
    assert parser.parse_args(['--device', 'cpu']).device == 'cpu'
    assert parser.parse_args([]).device == 'cuda'
    again = argparse.ArgumentParser()
    ArgumentHelper.device(again)  # upstream's default list is shared
    choices, = [action.choices for action in again._actions if action.dest == 'device']
    assert sorted(set(choices)) == sorted(choices) and 'ascend' in choices


def test_operators_follow_the_device_context():
    manager = get_device_manager()
    with manager.context(DeviceContext('cpu')):
        assert get_backend() is CpuOpsBackend
    manager.set_context(DeviceContext('abacus'))
    with pytest.raises(RuntimeError, match='Unsupported device type: abacus'):
        get_backend()
    manager.set_context(DeviceContext())


@pytest.mark.parametrize('settings, expected', [(Settings(cpu_threads=3), 3), (Settings(), 2)])
def test_threads(monkeypatch, settings, expected):
    chosen = []
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 8)
    monkeypatch.setattr(torch, 'set_num_threads', chosen.append)
    monkeypatch.setattr(device.psutil.Process, 'cpu_affinity', lambda self: [0, 1])
    assert device.apply_thread_count(settings) == expected
    assert chosen == [expected]


def test_counting_gpus_leaves_cuda_alone():
    """A process that has initialised CUDA cannot fork a server: `lmdeploy.serve` does."""
    code = ('from lmdeploy_ext.pytorch.device import runs_on_cpu; import torch; '
            'runs_on_cpu("cuda"); assert not torch.cuda.is_initialized()')
    subprocess.run([sys.executable, '-W', 'ignore', '-c', code], check=True)
