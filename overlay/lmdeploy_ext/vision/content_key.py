"""Keys under which features are known: equal exactly where everything that decides them is.

Keys are BLAKE2b digests (RFC 7693) of 16 bytes. What is hashed has one reading only: every part
has its length before it, and each kind of key a name of its own.
"""
import dataclasses
import hashlib
import json
from typing import Any, Sequence, Union

import numpy as np

from lmdeploy_ext.vl.image_rules import PixelRules
from lmdeploy_ext.vl.tiling import TilePlan

KEY_BYTES = 16
# To be raised when the same content, plan and rules give other tiles than before.
_VERSION = 1


def content_key(content: Union[bytes, bytearray, memoryview, np.ndarray]) -> bytes:
    """The key of an image's content, about 1 ms a megabyte.

    Args:
        content: encoded, or uint8 pixels [h, w, 3]. Pixels and a file that holds them have
            different keys.

    Raises:
        ValueError: an array of another dtype.
    """
    if isinstance(content, np.ndarray):
        if content.dtype != np.uint8:
            raise ValueError(f'found {content.dtype} pixels; expected uint8; convert them')
        shape = ','.join(map(str, content.shape)).encode()
        return digest('pixels', [shape, content])
    return digest('file', [content])


def feature_key(content: bytes, plan: TilePlan, rules: PixelRules, model: bytes) -> bytes:
    """The key of an image's features.

    The plan stands for the policy and what the request asked for, which matter through it alone.

    Args:
        content: its `content_key`.
        plan, rules: every field of them counts, also those that are added one day.
        model: what makes features of tiles; see `model_key`.
    """
    return digest('features', [str(_VERSION).encode(), content, _fields(plan), _fields(rules),
                               model])


def digest(kind: str, parts: Sequence[Any]) -> bytes:
    """A hash of bytes-like parts; other parts, or another kind, have another one.

    Args:
        kind: at most 16 ASCII characters.
    """
    state = hashlib.blake2b(digest_size=KEY_BYTES, person=kind.encode())
    for part in parts:
        view = memoryview(part)
        # hashlib takes flat memory only
        flat = view.cast('B') if view.c_contiguous and view.nbytes else view.tobytes()
        state.update(view.nbytes.to_bytes(8, 'little'))
        state.update(flat)
    return state.digest()


def _fields(settings: Any) -> bytes:
    """A dataclass with its name and its fields' names: JSON writes numbers and text exactly."""
    return json.dumps([type(settings).__name__, dataclasses.asdict(settings)],
                      sort_keys=True).encode()
