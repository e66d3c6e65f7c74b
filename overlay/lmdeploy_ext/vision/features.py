"""Features on their way to the language model."""
import threading
import weakref
from typing import Any, Optional, Tuple

import torch


def attached_key(features: Any) -> Optional[bytes]:
    """The key that `Features` gave its tensor; None for whatever else holds features."""
    return getattr(features, 'feature_key', None)


class Features:
    """Features of an image, as upstream's `_get_prompt_input` takes them.

    It asks every image's features for `.cpu().numpy()`, on the event loop, which waits for the
    GPU; both engines take tensors just as well, and the PyTorch engine those on its own device. So
    here both methods give what there is.

    Args:
        tensor: [tokens, hidden]; shared with the feature cache, so nobody may write to it.
        key: of what it was computed from; see `content_key.feature_key`. It goes with the tensor,
            since upstream hands that to the engine and nothing else; `attached_key` finds it.
    """

    def __init__(self, tensor: torch.Tensor, key: Optional[bytes] = None) -> None:
        self._tensor = tensor
        if key is not None:
            tensor.feature_key = key

    @property
    def shape(self) -> Tuple[int, ...]:
        """(tokens, hidden)."""
        return tuple(self._tensor.shape)

    def cpu(self) -> 'Features':
        """Itself."""
        return self

    def numpy(self) -> torch.Tensor:
        """The tensor."""
        return self._tensor


class DeviceBudget:
    """How many bytes of features may wait on the GPU for the language model. Any thread may ask.

    Requests wait for the engine with their features in hand; thousands of them would fill the GPU,
    and to make them wait for each other's memory could end in a deadlock. So what does not fit
    goes to host memory, where stock LMDeploy has all of it.

    Args:
        limit_bytes: at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        # re-entrant: a finaliser may run inside any allocation, also one under the lock
        self._lock = threading.RLock()

    @property
    def bytes(self) -> int:
        """Of the features that wait on the GPU."""
        return self._bytes

    def hand_out(self, tensor: torch.Tensor, key: Optional[bytes] = None) -> Optional[Features]:
        """Features that count until nobody holds them any more; None if there is no room.

        Args:
            tensor, key: as for `Features`.
        """
        size = tensor.nbytes
        with self._lock:
            fits = self._bytes + size <= self._limit
            if fits:
                self._bytes += size
        if not fits:
            return None
        # The engine keeps the tensor and drops the wrapper: what lives as long is a view that
        # nobody else has, the cached tensor lives on.
        view = tensor.view(tensor.shape)
        weakref.finalize(view, self._give_back, size).atexit = False
        return Features(view, key)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
