"""Backends and transfers that tests hold and let go; nothing in them depends on time."""
import contextlib
import threading

import numpy as np
import torch

from lmdeploy_ext.vision import tile_scheduler
from lmdeploy_ext.vision.transfer import EventWatcher

SIDE, TOKENS, HIDDEN = 4, 2, 3
PATIENCE = 60  # seconds after which something is said to hang
BROKEN = 255


def image(number, count, broken=()):
    """Tiles that carry the number of their image and their own; `broken` ones fail."""
    tiles = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    tiles[:, 0, 0] = [number // 250, number % 250, 0]
    tiles[:, 1, 1, 0] = np.arange(count)
    tiles[list(broken), 2, 2, 0] = BROKEN
    return tiles


def features(number, count):
    """What `Backend` makes of such an image."""
    rows = torch.tensor([[number, tile, token] for tile in range(count)
                         for token in range(TOKENS)])
    return rows.float()


class BrokenTile(Exception):
    """What `Backend` raises."""


class Backend:
    """Features are [number of the image, of the tile, of the token].

    Attributes:
        gate: while it is cleared, `encode` waits.
        entered: released at each call.
        batches: number of tiles of each call.
        errors: what the next calls raise, first come first, or what makes it; None for one that
            raises nothing.
    """
    device, dtype = torch.device('cpu'), torch.float32
    side, tokens, hidden = SIDE, TOKENS, HIDDEN

    def __init__(self, max_tiles=1000):
        self.max_tiles = max_tiles
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches, self.errors = [], []

    def encode(self, tiles, out):
        self.batches.append(len(tiles))
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        assert tiles.dtype == torch.uint8 and len(tiles) == sum(map(len, out))
        assert not torch.is_grad_enabled()
        error = self.errors.pop(0) if self.errors else None
        if error:
            raise error() if callable(error) else error
        if (tiles[:, 2, 2, 0] == BROKEN).any():
            raise BrokenTile(f'among {len(tiles)}')
        pixels = tiles.float()
        numbers = pixels[:, 0, 0, 0] * 250 + pixels[:, 0, 0, 1]
        found = torch.stack([torch.stack([numbers, pixels[:, 1, 1, 0],
                                          torch.full_like(numbers, token)], 1)
                             for token in range(TOKENS)], 1)
        for part, rows in zip(out, found.split([len(part) for part in out])):
            part.copy_(rows)


class Event:
    """Work on a device: done when somebody waits for it, not before `gate` opens."""

    def __init__(self, work, gate):
        self._work, self._gate = work, gate
        self.done = threading.Event()

    def synchronize(self):
        try:
            assert self._gate.wait(PATIENCE)
            self._work()
        finally:
            self._work = None
            self.done.set()


class LateTransfer:
    """A device that does nothing before it must: what is given back or read too early shows.

    Attributes:
        uploading, finishing: gates.
        taken: released at each upload.
        broken: what all work on it raises, from the moment on when it is set.
    """

    def __init__(self, *_):
        self.uploading, self.finishing = threading.Event(), threading.Event()
        self.uploading.set()
        self.finishing.set()
        self.taken = threading.Semaphore(0)
        self.broken = None
        self._uploads, self._results = EventWatcher('uploads'), EventWatcher('results')

    def _issue(self, watcher, gate, work, then):
        def run():
            if self.broken:
                raise self.broken
            work()

        event = Event(run, gate)
        watcher.add(event, then)
        return event

    def upload(self, tiles, then):
        self.taken.release()
        staged = torch.full((sum(map(len, tiles)), SIDE, SIDE, 3), 7, dtype=torch.uint8)
        self._last = self._issue(self._uploads, self.uploading,
                                 lambda: np.concatenate(tiles, out=staged.numpy()), then)
        return staged

    def features(self, shapes, dtype):
        return [torch.full(shape, torch.nan, dtype=dtype) for shape in shapes]

    def outputs(self, features):
        return [torch.empty_like(part) for part in features]

    @contextlib.contextmanager
    def computing(self):
        assert self._last.done.wait(PATIENCE)
        with torch.no_grad():
            yield

    def finish(self, tiles, outputs, then):
        def copy():
            for output, features in outputs:
                features.copy_(output)

        self._issue(self._results, self.finishing, copy, then)

    def close(self):
        self._uploads.close()
        self._results.close()

    def join(self, seconds):
        self._uploads.join(seconds)
        self._results.join(seconds)


def late(monkeypatch):
    """Schedulers made from here on use a `LateTransfer`; it is in the list that is returned."""
    made = []

    def make(device, host_results):
        made.append(LateTransfer())
        return made[-1]

    monkeypatch.setattr(tile_scheduler, 'transfer_to', make)
    return made


class Counted:
    """An `uploaded` callback that counts, and lets the memory hold something else at once."""

    def __init__(self, tiles):
        self._tiles = tiles
        self.calls = 0
        self.called = threading.Event()

    def __call__(self):
        self.calls += 1
        self._tiles[:] = 99
        self._tiles = None
        self.called.set()
