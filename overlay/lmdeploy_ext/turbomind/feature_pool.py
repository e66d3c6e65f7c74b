"""Rows of image features that token ids name: how they are filled."""
import asyncio
import weakref
from concurrent.futures import Future
from typing import Any, Callable, List, Optional, Protocol, Sequence, Tuple

import torch

from lmdeploy_ext.turbomind.pool_rows import PooledImage
from lmdeploy_ext.turbomind.virtual_ids import VirtualIds
from lmdeploy_ext.vision.transfer import EventWatcher

# an image that is new in the pool, and its features [tokens, hidden] on any device
Fresh = Tuple[PooledImage, torch.Tensor]


class RowWriter(Protocol):
    """Copies on one device; calls come from any thread."""

    def write(self, rows: torch.Tensor, index: torch.Tensor, features: Sequence[torch.Tensor],
              then: Callable[[Optional[Exception]], None]) -> None:
        """Copy features into rows. Copies are done in the order of their calls.

        Args:
            rows: [pool rows, hidden].
            index: int64 [tokens] on the CPU, the row of each.
            features: [tokens_i, hidden] each, sum(tokens_i) = tokens; complete on their device.
            then: called once, from any thread, when every stream and the host may rely on the
                copies; with the error that prevented them, if any.
        """
        ...


class CudaRowWriter:
    """Copies on a stream of its own, so that they wait for no batch of the vision model and no
    iteration of the language model. TurboMind runs on a stream that nobody can name from here:
    the host waits for an event, in a thread of its own, before it enqueues the request."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._watcher = EventWatcher('feature-pool')
        weakref.finalize(self, self._watcher.close)

    def write(self, rows: torch.Tensor, index: torch.Tensor, features: Sequence[torch.Tensor],
              then: Callable[[Optional[Exception]], None]) -> None:
        with torch.no_grad(), torch.cuda.stream(self._stream):
            index = index.pin_memory().to(self._device, non_blocking=True)
            parts = [part.to(rows, non_blocking=True) for part in features]
            rows.index_copy_(0, index, torch.cat(parts))
            written = torch.cuda.Event(blocking=True)
            written.record(self._stream)
        held = [features, index, parts]  # torch must not give their memory away before

        def done(error: Optional[Exception]) -> None:
            held.clear()
            then(error)

        self._watcher.add(written, done)


class FeaturePool:
    """The rows behind the ids.

    Args:
        ids: of the rows.
        rows: [ids.rows or fewer, hidden], on the language model's device.
        slot_rows: of a slot; see `pool_rows.PoolRows`.
        writer: for the device.
        memory: whatever must live as long as the rows, if torch does not see to that.
    """

    def __init__(self, ids: VirtualIds, rows: torch.Tensor, slot_rows: int, writer: RowWriter,
                 memory: Any = None) -> None:
        self._ids, self._rows, self._slot_rows, self._writer = ids, rows, slot_rows, writer
        self._memory = memory

    @property
    def hidden(self) -> int:
        """Numbers of a row."""
        return self._rows.shape[1]

    def ids_of(self, image: PooledImage) -> List[int]:
        """The ids of an image's tokens, in order."""
        ids: List[int] = []
        for slot, generation in image.places:
            tokens = min(self._slot_rows, image.tokens - len(ids))
            ids += self._ids.of_tile(slot, generation, self._slot_rows, tokens)
        return ids

    async def write(self, fresh: Sequence[Fresh]) -> None:
        """Bring features to their rows; they may be looked up when this returns.

        Cancelling it leaves the copies under way, but later ones into the same rows come after.

        Raises:
            RuntimeError: of the device.
        """
        if not fresh:
            return
        ids = torch.tensor([token for image, _ in fresh for token in self.ids_of(image)])
        written: 'Future[None]' = Future()

        def then(error: Optional[Exception]) -> None:
            if not written.set_running_or_notify_cancel():
                return
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

        self._writer.write(self._rows, ids - self._ids.first, [features for _, features in fresh],
                           then)
        await asyncio.wrap_future(written)
