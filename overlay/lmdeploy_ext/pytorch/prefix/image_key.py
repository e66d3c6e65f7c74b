"""The identity of an image in a prompt, as the language model sees it."""
import json
from typing import Any

import torch

from lmdeploy_ext.vision.content_key import digest
from lmdeploy_ext.vision.features import attached_key


def image_key(image: Any) -> bytes:
    """The key that the vision service gave the features, or else a hash of their values.

    Args:
        image: upstream's `InputEmbeddings`, one image of a request. It keeps its key, since
            hashing takes 1 ms a megabyte; nobody changes the values while a request is under way.
    """
    known = getattr(image, 'image_key', None)
    if known is None:
        known = image.image_key = attached_key(image.embeddings) or values_key(image.embeddings)
    return known


def values_key(embeddings: Any) -> bytes:
    """A hash of embeddings, equal for equal dtype, shape and values.

    Args:
        embeddings: [tokens, hidden], a tensor on any device or a numpy array.
    """
    values = torch.as_tensor(embeddings).detach()
    about = json.dumps([str(values.dtype), list(values.shape)])
    flat = values.cpu().contiguous().reshape(-1).view(torch.uint8)
    return digest('embeddings', [about.encode(), flat.numpy()])
