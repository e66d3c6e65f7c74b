"""GPU memory at an address of our choice, by CUDA's virtual memory calls (`cuda.bindings.driver`,
package `cuda-bindings`). Ordinary allocations landed below the embedding table on an H200."""
import weakref
from typing import Any, Iterator

import torch

from lmdeploy_ext.turbomind.virtual_ids import NoPlace

# Where to ask for: the driver takes an address as a wish, and some of these are taken.
_DISTANCES = [0] + [1 << shift for shift in range(30, 44)]


class MappedMemory:
    """GPU memory that belongs to this object; torch does not know of it.

    Args:
        floor: the lowest address it may have.
        ceiling: an address that it must lie below.
        size: bytes; rounded up to what the GPU maps at once (2 MiB on an H200).
        device: index of the GPU.

    Raises:
        NoPlace: CUDA gives no memory there, or its Python binding is missing.
    """

    def __init__(self, floor: int, ceiling: int, size: int, device: int) -> None:
        self._driver = _driver()
        torch.cuda.synchronize(device)  # makes its context current in this thread
        properties = self._properties(device)
        granularity = self._call('cuMemGetAllocationGranularity', properties,
                                 self._driver.CUmemAllocationGranularity_flags
                                 .CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        self.size = -(-size // granularity) * granularity
        self.address = self._reserve(floor, ceiling, granularity)
        try:
            handle = self._call('cuMemCreate', self.size, properties, 0)
        except NoPlace:
            self._call('cuMemAddressFree', self.address, self.size)
            raise
        self._call('cuMemMap', self.address, self.size, 0, handle, 0)
        access = self._driver.CUmemAccessDesc()
        access.location = properties.location
        access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call('cuMemSetAccess', self.address, self.size, [access], 1)
        # the mapping keeps the memory from here on
        self._call('cuMemRelease', handle)
        self._device = device
        self._unmap = weakref.finalize(self, _unmap, self._driver, self.address, self.size)
        self._unmap.atexit = False  # the process takes its memory along, and the context is gone

    def bytes(self) -> torch.Tensor:
        """All of it, uint8 [size]; not to be used after `close`."""
        return torch.as_tensor(_Interface(self.address, self.size),
                               device=torch.device('cuda', self._device))

    def close(self) -> None:
        """Give it back to the GPU, when nothing uses it any more."""
        torch.cuda.synchronize(self._device)
        self._unmap()

    def _properties(self, device: int) -> Any:
        properties = self._driver.CUmemAllocationProp()
        properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device
        return properties

    def _reserve(self, floor: int, ceiling: int, granularity: int) -> int:
        for wish in _wishes(floor, granularity):
            if wish + self.size > ceiling:
                break
            address = int(self._call('cuMemAddressReserve', self.size, 0,
                                     self._driver.CUdeviceptr(wish), 0))
            if floor <= address and address + self.size <= ceiling:
                return address
            self._call('cuMemAddressFree', address, self.size)
        raise NoPlace(f'CUDA reserves no {self.size} bytes of addresses between {floor:#x} and '
                      f'{ceiling:#x}; ids can name rows only there. A smaller pool may fit')

    def _call(self, name: str, *arguments: Any) -> Any:
        return _call(self._driver, name, *arguments)


class _Interface:
    """What torch wants to see of memory that it did not allocate."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = dict(shape=(size, ), typestr='|u1', strides=None,
                                             data=(address, False), version=3)


def _wishes(floor: int, granularity: int) -> Iterator[int]:
    start = -(-floor // granularity) * granularity
    return (start + distance for distance in _DISTANCES)


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise NoPlace(f'cuda.bindings cannot be imported ({error}); `pip install cuda-bindings`, '
                      'in the release of the CUDA driver') from error
    return driver


def _call(driver: Any, name: str, *arguments: Any) -> Any:
    status, *results = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise NoPlace(f'{name} gives {status.name}; the pool for image features has no memory')
    return results[0] if results else None


def _unmap(driver: Any, address: int, size: int) -> None:
    _call(driver, 'cuMemUnmap', address, size)
    _call(driver, 'cuMemAddressFree', address, size)
