"""What a block of the KV cache is known by: everything that decides the keys and values in it."""
from typing import Any, NamedTuple, Tuple

import numpy as np

from .image_key import image_key


class ImagePart(NamedTuple):
    """The part of an image that lies in a block.

    Attributes:
        key: of the image, all of it.
        start, end: tokens of the block, from its start.
        offset: of the first of them in the image.
    """
    key: bytes
    start: int
    end: int
    offset: int


class BlockKey(NamedTuple):
    """The content of a block, given the blocks before it. A dictionary compares all of it, so no
    collision of hashes gives a block to another prompt.

    Attributes:
        tokens: the ids as int64; an image has one and the same id at all its positions.
        images: the images in it, in order.
    """
    tokens: bytes
    images: Tuple[ImagePart, ...] = ()


def block_key(seq: Any, start: int, end: int) -> BlockKey:
    """The key of the tokens `start` to `end` of a sequence.

    Args:
        seq: upstream's `SchedulerSequence`.
    """
    tokens = np.asarray(seq.history_cache[start:end], dtype=np.int64).tobytes()
    parts = tuple(_part(image, start, end) for image in seq.history_embeddings.embeddings
                  if image.start < end and start < image.end)
    return BlockKey(tokens, parts)


def _part(image: Any, start: int, end: int) -> ImagePart:
    first = max(image.start, start)
    return ImagePart(image_key(image), first - start, min(image.end, end) - start,
                     first - image.start)
