"""Pictures drawn by worker processes while the model trains, kept in the trainer's memory as
uint8."""
import os
import queue
import tempfile
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Iterable, Iterator

import cv2
import numpy as np
import torch

from .picture import CLASS_STEP, Mark, draw

CHUNK = 64


@dataclass(frozen=True)
class Truth:
    """What is known of a picture, see `Picture`."""
    beds: int
    bunks: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Chunk:
    """Pictures of one size: pixels uint8 `[n, height, width, 3]`, class maps uint8 `[n, height //
    8, width // 8]`, and the truth of each."""
    pixels: torch.Tensor
    classes: torch.Tensor
    truths: list[Truth]

    def part(self, places) -> 'Chunk':
        """Some of the pictures: `places` is a slice."""
        return Chunk(self.pixels[places], self.classes[places], self.truths[places])


def _draw_chunk(split: str, seed: int, indices: range,
                folder: str) -> list[tuple[str, tuple, np.ndarray, list]]:
    """Draw pictures; their decoded pixels go to one file for each size, since a pipe would be the
    bottleneck."""
    cv2.setNumThreads(1)
    by_size: dict[tuple, list] = {}
    for index in indices:
        picture = draw(split, seed, index)
        by_size.setdefault((picture.height, picture.width), []).append(picture)
    parts = []
    for (height, width), pictures in by_size.items():
        path = os.path.join(folder, f'{split}-{indices.start}-{height}x{width}')
        np.stack([picture.pixels() for picture in pictures]).tofile(path)
        truths = [Truth(picture.beds, picture.bunks, picture.marks) for picture in pictures]
        classes = np.stack([picture.classes for picture in pictures])
        parts.append((path, (len(pictures), height, width, 3), classes, truths))
    return parts


class PictureStream:
    """Draws pictures of a split without end, or the first `count` of them.

    Iterate over `ready()` in the training loop: it gives the chunks finished since, on `device`,
    and does not wait. Use it in a `with` statement.
    """

    def __init__(self,
                 split: str,
                 seed: int,
                 jobs: int,
                 device: torch.device,
                 executor: ProcessPoolExecutor,
                 count: int = 0):
        self._split, self._seed, self._device, self._executor = split, seed, device, executor
        self._limit, self._jobs = count or 1 << 40, jobs
        self._chunks: queue.Queue = queue.Queue(maxsize=256)
        self._stop = threading.Event()
        self._error: list[BaseException] = []
        self._folder = tempfile.TemporaryDirectory(
            dir='/dev/shm' if Path('/dev/shm').is_dir() else None)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> 'PictureStream':
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()
        self._folder.cleanup()

    def _run(self) -> None:
        try:
            self._feed()
        except Exception as error:  # handed to the training thread, which raises it
            self._error.append(error)
        self._stop.set()

    def _feed(self) -> None:
        """Keep the workers busy, and move what they finish to the device."""
        starts = iter(range(0, self._limit, CHUNK))
        pending = {self._submit(start) for start, _ in zip(starts, range(self._jobs + 4))}
        while pending and not self._stop.is_set():
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                start = next(starts, None)
                if start is not None:
                    pending.add(self._submit(start))
                for path, shape, classes, truths in future.result():
                    pixels = torch.from_numpy(np.fromfile(path, np.uint8).reshape(shape)).to(
                        self._device)
                    os.unlink(path)
                    self._chunks.put(
                        Chunk(pixels,
                              torch.from_numpy(classes).to(self._device), truths))
        for future in pending:
            future.cancel()
        wait(pending)

    def _submit(self, start: int):
        indices = range(start, min(start + CHUNK, self._limit))
        return self._executor.submit(_draw_chunk, self._split, self._seed, indices,
                                     self._folder.name)

    def ready(self) -> Iterator[Chunk]:
        """The chunks that are there now."""
        if self._error:
            raise self._error[0]
        while True:
            try:
                yield self._chunks.get_nowait()
            except queue.Empty:
                return

    def all(self) -> Iterator[Chunk]:
        """Every chunk of a stream with a `count`, waiting for them."""
        while not self._stop.is_set() or not self._chunks.empty():
            yield from self.ready()
            self._stop.wait(0.02)
        yield from self.ready()


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes for drawing. Started afresh, not forked: the parent may hold a GPU. Of low
    priority: they must not take the core that feeds the GPU."""
    return ProcessPoolExecutor(jobs,
                               mp_context=get_context('spawn'),
                               initializer=os.nice,
                               initargs=(15, ))


class Album:
    """The newest pictures, by size: rings of uint8 pixels with `capacity` bytes in all.

    Capacity is shared among the sizes as their first pictures come, `shares[size]` of it each.
    """

    def __init__(self, capacity: int, shares: dict[tuple[int, int], float], device: torch.device):
        self._rings: dict[tuple, Chunk] = {}
        self._next: dict[tuple, int] = {}
        bytes_each = sum(share * 3 * h * w for (h, w), share in shares.items())
        for (h, w), share in shares.items():
            places = max(8, int(capacity / bytes_each * share))
            pixels = torch.empty((places, h, w, 3), dtype=torch.uint8, device=device)
            classes = torch.empty((places, h // CLASS_STEP, w // CLASS_STEP),
                                  dtype=torch.uint8,
                                  device=device)
            self._rings[h, w], self._next[h, w] = Chunk(pixels, classes, []), 0
        self.seen = 0

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk, in the place of the oldest pictures of its size where the ring is full."""
        size = tuple(chunk.pixels.shape[1:3])
        ring = self._rings[size]
        for pixels, classes, truth in zip(chunk.pixels, chunk.classes, chunk.truths):
            place = self._next[size]
            ring.pixels[place].copy_(pixels)
            ring.classes[place].copy_(classes)
            ring.truths[place:place + 1] = [truth]
            self._next[size] = (place + 1) % len(ring.pixels)
        self.seen += len(chunk.truths)

    def sample(self, rng: np.random.Generator, size: tuple[int, int], count: int) -> Chunk:
        """`count` pictures of `size` (height, width)."""
        ring = self._rings[size]
        places = rng.integers(len(ring.truths), size=count)
        index = to_device(places, ring.pixels.device)
        return Chunk(ring.pixels[index], ring.classes[index],
                     [ring.truths[place] for place in places])

    def complete(self) -> bool:
        """Whether there are pictures of every size."""
        return all(ring.truths for ring in self._rings.values())


def merge(chunks: Iterable[Chunk]) -> list[Chunk]:
    """One chunk for each size."""
    by_size: dict[tuple, list[Chunk]] = {}
    for chunk in chunks:
        by_size.setdefault(tuple(chunk.pixels.shape[1:]), []).append(chunk)
    return [
        Chunk(torch.cat([c.pixels for c in found]), torch.cat([c.classes for c in found]),
              [truth for c in found for truth in c.truths]) for found in by_size.values()
    ]


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy without waiting for the work that the device still has to do."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == 'cuda' else tensor
