"""A vision backend of several, each on a GPU of its own: data parallel over tiles.

Every tile costs the same, so equal numbers of tiles are the best deal.
"""
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Iterator, List, Optional, Sequence, Tuple

import torch

from lmdeploy_ext.vision.backend import VisionBackend, check, fill, run
from lmdeploy_ext.vision.parts import part_of

# One or two tiles take about as long as their copies and the second GPU's launches would.
_WHOLE = 2


class ReplicatedBackend(VisionBackend):
    """Deals the tiles of a batch to replicas, in runs that follow each other.

    The first replica is the primary: tiles come and features go on its device, and its part runs
    on the caller's stream and thread. The others have a stream and a host thread each, so
    that launches go on side by side; tiles and features are copied from GPU to GPU. Batches of
    one or two tiles stay whole, on the primary: batches are complete in the caller's
    stream one after the other, so taking turns would let none overlap, and cost the copies.

    Args:
        backends: of the same weights and sizes; several may be on one device.

    Raises:
        ValueError: no backend, or backends whose features are not alike.
    """

    def __init__(self, backends: Sequence[VisionBackend]) -> None:
        _check_alike(backends)
        self._primary = primary = backends[0]
        self.device, self.dtype = primary.device, primary.dtype
        self.side, self.tokens, self.hidden = primary.side, primary.tokens, primary.hidden
        self._limits = [backend.max_tiles for backend in backends]
        self.max_tiles = sum(self._limits)
        self._others = [_Replica(backend, number)
                        for number, backend in enumerate(backends[1:], 1)]

    @property
    def backends(self) -> Tuple[VisionBackend, ...]:
        """Those it was made of, the primary first; for their figures."""
        return (self._primary, *(replica.backend for replica in self._others))

    @torch.no_grad()
    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """See `VisionBackend`. The host waits until every replica's thread has issued its work.

        Raises:
            ValueError: `tiles` or `out` are not what the backend takes.
            Exception: what a replica raised, the first one's; none of them is at work then.
        """
        check(self, tiles, out)
        counts = deal(len(tiles), self._limits)
        parts = tiles.split(counts)
        at_work = []
        try:
            for replica, part in zip(self._others, parts[1:]):
                if len(part):
                    at_work.append((replica, replica.start(part)))
            if counts[0]:
                self._primary.encode(parts[0], part_of(out, 0, counts[0]))
        finally:
            # also after a failure: tiles and replicas may be used again when this returns
            wait([started for _, started in at_work])
            for replica, _ in at_work:
                replica.before_what_follows_on(self.device)
        start = counts[0]
        for replica, started in at_work:
            features = started.result()
            stop = start + len(features)
            replica.hand_over(features, part_of(out, start, stop), self.device)
            start = stop


class _Replica:
    """A backend with a thread, and on a GPU a stream, of its own."""

    def __init__(self, backend: VisionBackend, number: int) -> None:
        self.backend = backend
        self._stream: Optional[torch.cuda.Stream] = None
        if backend.device.type == 'cuda':
            self._stream = torch.cuda.Stream(backend.device)
        self._thread = ThreadPoolExecutor(1, f'vision-replica-{number}')

    def start(self, tiles: torch.Tensor) -> 'Future[torch.Tensor]':
        """Begin with tiles that are ready on their device's current stream.

        Returns:
            the features [n, tokens, hidden], once all work for them is issued to the stream.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(tiles.device))
        with self._on_stream():
            # Issued by this thread, so on the stream that made the tiles, and within this one's.
            tiles = tiles.to(self.backend.device, non_blocking=True)
        return self._thread.submit(self._run, tiles)

    def before_what_follows_on(self, device: torch.device) -> None:
        """Let the current stream of `device` wait for all work issued so far."""
        if self._stream is not None:
            torch.cuda.current_stream(device).wait_stream(self._stream)

    def hand_over(self, features: torch.Tensor, out: Sequence[torch.Tensor],
                  device: torch.device) -> None:
        """Copy features, for which the current stream of `device` waits, to where they go."""
        if self._stream is None:
            fill(out, features)
            return
        current = torch.cuda.current_stream(device)
        if device == self.backend.device:
            features.record_stream(current)  # their memory must not be given away before the copy
        # Between devices torch copies on the source's current stream, in step with the other's.
        with self._on_stream(), torch.cuda.stream(current):
            fill(out, features)

    def _run(self, tiles: torch.Tensor) -> torch.Tensor:
        with self._on_stream():
            return run(self.backend, tiles)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """The backend's device and this replica's stream, for this thread."""
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            yield


def deal(tiles: int, limits: Sequence[int]) -> List[int]:
    """How many tiles each replica gets.

    Args:
        tiles: of the batch, at most the sum of the limits.
        limits: tiles that each replica takes at most.

    Returns:
        as equal numbers as the limits allow, the first ones one larger where they do not come
        out even; all to the first replica where there are no more than two.
    """
    if tiles <= min(_WHOLE, limits[0]):
        return [tiles, *[0] * (len(limits) - 1)]
    counts, rest = [0] * len(limits), tiles
    # the tightest limit first: what it leaves is shared by the others
    order = sorted(range(len(limits)), key=lambda number: (limits[number], -number))
    for place, number in enumerate(order):
        left = len(order) - place
        counts[number] = min(limits[number], rest // left)
        rest -= counts[number]
    return counts


def _check_alike(backends: Sequence[VisionBackend]) -> None:
    if not backends:
        raise ValueError('no backend to replicate; expected at least one')
    kinds = [(backend.side, backend.tokens, backend.hidden, backend.dtype, backend.device.type)
             for backend in backends]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(f'replica {number} has (side, tokens, hidden, dtype, device) {kind}, '
                             f'the first one {kinds[0]}; build all of them from the same model')
