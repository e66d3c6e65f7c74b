"""Memory for tiles, used again and again.

A fresh array of 13 tiles is 8 MB of memory that the system hands out page by page while it is
written: on a virtual machine 6 ms and more, where a copy into memory in use takes 0.13 and making
the tiles 3. Pinned memory, for the GPU, costs more than that to get.
"""
import threading
import weakref
from collections import OrderedDict
from typing import List

import numpy as np


class TileBuffers:
    """Arrays of tiles, lent and taken back. Any thread may do either.

    Idle arrays are kept by their number of tiles, those that were used last before others, up to
    `limit_bytes`. What is lent does not count, and an array that is never given back is freed as
    any other.
    """

    def __init__(self, side: int, pinned: bool, limit_bytes: int):
        """
        Args:
            side: of a tile, in pixels.
            pinned: whether the memory is page-locked, so that a GPU copies it while the CPU goes
                on. Needs torch with CUDA.
            limit_bytes: of memory to keep idle.
        """
        self._side = side
        self._pinned = pinned
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._lent = weakref.WeakValueDictionary()  # id -> array
        self._idle: OrderedDict[int, List[np.ndarray]] = OrderedDict()  # tiles -> arrays
        self._idle_bytes = 0

    def take(self, tiles: int) -> np.ndarray:
        """An array for so many tiles, uint8 [tiles, side, side, 3], holding anything."""
        if tiles < 1:
            raise ValueError(f'a buffer for {tiles} tiles; at least 1 is needed')
        with self._lock:
            array = self._pop(tiles) if tiles in self._idle else None
        if array is None:
            array = self._new(tiles)
        with self._lock:
            self._lent[id(array)] = array
        return array

    def give(self, array: np.ndarray):
        """Take back an array that `take` returned, itself and not a view of it. Nobody may use it
        any more: neither a copy to the GPU that is still under way nor a tensor made from it.

        Raises:
            ValueError: it is not lent. Given back twice, it would be lent to two images.
        """
        with self._lock:
            if self._lent.pop(id(array), None) is not array:
                raise ValueError(f'an array of shape {list(array.shape)} is given back, but it is '
                                 'not lent; give back what take() returned, once')
            if array.nbytes > self._limit:
                return
            self._idle.setdefault(len(array), []).append(array)
            self._idle.move_to_end(len(array))
            self._idle_bytes += array.nbytes
            while self._idle_bytes > self._limit:
                self._pop(next(iter(self._idle)))

    @property
    def idle_bytes(self) -> int:
        """Bytes kept for later."""
        return self._idle_bytes

    def _pop(self, tiles: int) -> np.ndarray:
        """Remove the array that was used last from the idle ones of so many tiles."""
        arrays = self._idle[tiles]
        array = arrays.pop()
        if not arrays:
            del self._idle[tiles]
        self._idle_bytes -= array.nbytes
        return array

    def _new(self, tiles: int) -> np.ndarray:
        shape = (tiles, self._side, self._side, 3)
        if not self._pinned:
            return np.empty(shape, np.uint8)
        import torch  # the rest of the image pipeline does without
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
