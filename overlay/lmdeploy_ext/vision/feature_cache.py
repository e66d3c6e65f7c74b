"""Features by content key, the least recently used out first: from the device to host memory."""
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Tuple

import torch
from cachetools import TLRUCache


@dataclass(frozen=True)
class CacheFigures:
    """Counters since the start, and what is there now.

    Attributes:
        hits: look-ups that found features, in either tier.
        host_hits: those of them that found them in host memory.
        misses: look-ups that found none.
        spills: entries that went from the device to host memory for lack of room.
        evictions: entries that were dropped for lack of room.
        expirations: entries that were dropped because their time was over.
        entries, bytes: on the device (of the model, which may be the CPU).
        host_entries, host_bytes: in host memory behind it.
    """
    hits: int
    host_hits: int
    misses: int
    spills: int
    evictions: int
    expirations: int
    entries: int
    bytes: int
    host_entries: int
    host_bytes: int


@dataclass(frozen=True)
class _Entry:
    """Features, and when they may be used.

    Attributes:
        bytes: of memory that they take.
        expires: on the cache's clock.
        home: the device that they came from and go back to.
        ready: what a stream has to wait for before it reads them; None on a CPU.
    """
    features: torch.Tensor
    bytes: int
    expires: float
    home: torch.device
    ready: Optional[torch.cuda.Event]


class _Tier(TLRUCache):
    """Entries in memory of one kind.

    Attributes:
        expirations: entries whose time was over.
    """

    def __init__(self, limit_bytes: int, timer: Callable[[], float]) -> None:
        super().__init__(limit_bytes, lambda _, entry, now: entry.expires, timer,
                         lambda entry: entry.bytes)
        self.expirations = 0
        self._pushed_out: List[Tuple[bytes, _Entry]] = []

    def add(self, key: bytes, entry: _Entry) -> List[Tuple[bytes, _Entry]]:
        """Keep an entry that is not larger than the tier; what had to leave for it."""
        self.remove(key)
        self[key] = entry
        pushed_out, self._pushed_out = self._pushed_out, []
        return pushed_out

    def find(self, key: bytes) -> Optional[_Entry]:
        """The entry, the most recently used one from now on."""
        try:
            return self[key]
        except KeyError:
            return None

    def remove(self, key: bytes) -> None:
        with self.timer:  # time stands still between looking and removing
            self.pop(key, None)

    def expire(self, time=None):
        expired = super().expire(time)
        self.expirations += len(expired)
        return expired

    def popitem(self):
        pushed_out = super().popitem()
        self._pushed_out.append(pushed_out)
        return pushed_out


class FeatureCache:
    """Features of images that were seen lately; any thread may use it.

    What leaves the device for lack of room moves to host memory, and back when it is asked for.
    Neither way does the host wait for a GPU: copies are issued to streams, which events put in
    order (a copy to host memory that is not pinned is the exception). Pinned memory comes from
    torch's allocator, which keeps it for the next entry; only its growth takes time.

    The tensors that `get` returns are everybody's: they must not be written to.

    Args:
        limit_bytes: on the device. 0 turns the cache off, its host tier included.
        seconds: that an entry lives after it was put, used or not; None without end. Memory of
            expired entries is free again at the next call.
        host_bytes: in host memory, for what has no room on the device; 0 for none.
        pinned: whether that memory is page-locked, as it should be behind a GPU. The allocator
            rounds such memory up to a power of two, and so it is counted.
        timer: a clock in seconds.

    Raises:
        ValueError: a limit below 0, or no time to live.
    """

    def __init__(self,
                 limit_bytes: int,
                 seconds: Optional[float],
                 host_bytes: int = 0,
                 pinned: bool = False,
                 timer: Callable[[], float] = time.monotonic) -> None:
        if limit_bytes < 0 or host_bytes < 0:
            raise ValueError(f'a feature cache of {limit_bytes} bytes and {host_bytes} in host '
                             'memory; expected 0 or more; 0 turns it off')
        if seconds is not None and not seconds > 0:
            raise ValueError(f'features that live {seconds} s; expected more than 0; None lets '
                             'them live without end')
        self._seconds = math.inf if seconds is None else seconds
        self._pinned = pinned
        self._lock = threading.Lock()  # of all that follows
        self._timer = timer
        self._device = _Tier(limit_bytes, timer)
        self._host = _Tier(host_bytes, timer)
        self._spill_streams: Dict[torch.device, torch.cuda.Stream] = {}
        self._hits = self._host_hits = self._misses = self._spills = self._evictions = 0

    def get(self, key: bytes) -> Optional[torch.Tensor]:
        """The features under a key, or None.

        Returns:
            the tensor that was put, on its device; not to be written to. On a GPU it may be used
            on the caller's current stream.
        """
        if not self._device.maxsize:
            return None
        with self._lock:
            self._expire()
            entry = self._device.find(key)
            if entry is None:
                entry = self._host.find(key)
                if entry is None:
                    self._misses += 1
                    return None
                self._host_hits += 1
                self._host.remove(key)
                entry = self._to_device(entry)
                self._add(key, entry)
            self._hits += 1
        _let_current_stream_read(entry)
        return entry.features

    def put(self, key: bytes, features: torch.Tensor) -> None:
        """Keep features, as the most recently used ones; larger ones than the cache are not kept.

        Args:
            features: any shape and dtype, on the model's device; not to be written to any more. On
                a GPU they are there already, or once the caller's current stream has got to
                this point. A part of a larger tensor is copied, not to keep all of it.
        """
        if not self._device.maxsize or features.nbytes > self._device.maxsize:
            return
        features = _of_its_own(features)
        ready = None
        if features.is_cuda:
            ready = torch.cuda.current_stream(features.device).record_event()
        with self._lock:
            self._expire()
            entry = _Entry(features, features.nbytes, self._timer() + self._seconds,
                           features.device, ready)
            self._host.remove(key)
            self._add(key, entry)

    def figures(self) -> CacheFigures:
        """The numbers of now."""
        with self._lock:
            self._expire()
            return CacheFigures(self._hits, self._host_hits, self._misses, self._spills,
                                self._evictions,
                                self._device.expirations + self._host.expirations,
                                len(self._device), self._device.currsize, len(self._host),
                                self._host.currsize)

    def _expire(self) -> None:
        self._device.expire()
        self._host.expire()

    def _add(self, key: bytes, entry: _Entry) -> None:
        """Onto the device; what has no room there any more to host memory."""
        for old_key, old in self._device.add(key, entry):
            size = self._bytes_on_host(old)
            if size > self._host.maxsize:
                self._evictions += 1
                continue
            self._evictions += len(self._host.add(old_key, self._to_host(old, size)))
            self._spills += 1

    def _bytes_on_host(self, entry: _Entry) -> int:
        if self._pinned and entry.home.type == 'cuda':
            return 1 << (entry.bytes - 1).bit_length()
        return entry.bytes

    def _to_host(self, entry: _Entry, size: int) -> _Entry:
        """Issue the copy to host memory; features that are there already stay as they are."""
        features = entry.features
        if entry.home.type != 'cuda':
            return entry
        if entry.home not in self._spill_streams:
            self._spill_streams[entry.home] = torch.cuda.Stream(entry.home)
        stream = self._spill_streams[entry.home]
        copy = torch.empty(features.shape, dtype=features.dtype, pin_memory=self._pinned)
        with torch.cuda.stream(stream):
            stream.wait_event(entry.ready)
            copy.copy_(features, non_blocking=True)
            # the device's memory goes to nobody else before the copy is done
            features.record_stream(stream)
            ready = stream.record_event()
        return replace(entry, features=copy, bytes=size, ready=ready)

    def _to_device(self, entry: _Entry) -> _Entry:
        """Issue the copy back, on the caller's current stream."""
        if entry.home.type != 'cuda':
            return entry
        stream = torch.cuda.current_stream(entry.home)
        stream.wait_event(entry.ready)
        features = entry.features.to(entry.home, non_blocking=True)
        return replace(entry, features=features, bytes=features.nbytes,
                       ready=stream.record_event())


def _of_its_own(features: torch.Tensor) -> torch.Tensor:
    """Features whose memory holds nothing else."""
    features = features.detach().contiguous()
    if features.untyped_storage().nbytes() > features.nbytes:
        return features.clone()
    return features


def _let_current_stream_read(entry: _Entry) -> None:
    """Order the caller's work after the features, and the end of their memory after it."""
    if entry.ready is not None:
        stream = torch.cuda.current_stream(entry.home)
        stream.wait_event(entry.ready)
        entry.features.record_stream(stream)
