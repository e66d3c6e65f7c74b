"""Memory above an address, over a stand-in for CUDA's driver API."""
import sys
from types import SimpleNamespace

import pytest
import torch

from lmdeploy_ext.turbomind.cuda_memory import MappedMemory
from lmdeploy_ext.turbomind.virtual_ids import NoPlace

MIB, GIB = 1 << 20, 1 << 30
FLOOR, CEILING = 100 * GIB + 5, 1000 * GIB


class StandInDriver:
    """Reserves addresses where nothing is; calls are noted.

    Args:
        taken: ranges [begin, end) where a wish is not granted but the address 1 GiB given.
        failing: name of a call that fails.
    """
    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)

    def __init__(self, taken=(), failing=None):
        self.taken, self.failing, self.calls = taken, failing, []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            if name == self.failing:
                return (SimpleNamespace(name='CUDA_ERROR_OUT_OF_MEMORY'), )
            return (0, getattr(type(self), '_' + name, lambda *_: None)(self, *arguments))

        return call

    CUmemAllocationProp = CUmemAccessDesc = staticmethod(
        lambda: SimpleNamespace(location=SimpleNamespace()))
    CUdeviceptr = int

    def _cuMemGetAllocationGranularity(self, *_):
        return 2 * MIB

    def _cuMemAddressReserve(self, size, alignment, wish, flags):
        taken = any(begin < wish + size and wish < end for begin, end in self.taken)
        return GIB if taken else wish

    def count(self, name):
        return sum(call == name for call, _ in self.calls)


@pytest.fixture
def use(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda device: None)

    def install(driver):
        module = SimpleNamespace(driver=driver)
        monkeypatch.setitem(sys.modules, 'cuda', SimpleNamespace(bindings=module))
        monkeypatch.setitem(sys.modules, 'cuda.bindings', module)
        return driver

    return install


def test_memory_lies_above_the_floor_in_whole_grains(use):
    driver = use(StandInDriver())
    memory = MappedMemory(FLOOR, CEILING, 3 * MIB, 0)
    assert memory.address == 100 * GIB + 2 * MIB and memory.size == 4 * MIB
    memory.close()
    assert driver.calls[-2:] == [('cuMemUnmap', (memory.address, 4 * MIB)),
                                 ('cuMemAddressFree', (memory.address, 4 * MIB))]


def test_where_addresses_are_taken_others_are_asked_for(use):
    driver = use(StandInDriver(taken=[(100 * GIB, 103 * GIB)]))
    memory = MappedMemory(FLOOR, CEILING, 3 * MIB, 0)
    assert memory.address > 103 * GIB
    # what was given elsewhere went back
    assert driver.count('cuMemAddressReserve') == driver.count('cuMemAddressFree') + 1


def test_nothing_is_kept_where_no_address_will_do(use):
    driver = use(StandInDriver(taken=[(0, 10**6 * GIB)]))
    with pytest.raises(NoPlace, match='between 0x'):
        MappedMemory(FLOOR, CEILING, 3 * MIB, 0)
    assert driver.count('cuMemAddressReserve') == driver.count('cuMemAddressFree') > 1
    assert not driver.count('cuMemCreate')


def test_nothing_is_kept_where_memory_is_short(use):
    driver = use(StandInDriver(failing='cuMemCreate'))
    with pytest.raises(NoPlace, match='cuMemCreate gives CUDA_ERROR_OUT_OF_MEMORY'):
        MappedMemory(FLOOR, CEILING, 3 * MIB, 0)
    assert driver.count('cuMemAddressFree') == 1


def test_a_missing_binding_is_named_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'cuda.bindings', None)
    with pytest.raises(NoPlace, match='pip install cuda-bindings'):
        MappedMemory(FLOOR, CEILING, 3 * MIB, 0)
