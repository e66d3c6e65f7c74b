"""Where the image features of a batch go, also of an image that is in the cache in part."""
from typing import Any, List

import torch

from .cache import prefix_cache_of


def place_images(engine: Any, messages: List[Any], inputs: Any) -> None:
    """Correct the positions of image features in the inputs of a forward pass.

    Args:
        engine: upstream's `Engine`.
        messages: `SchedulerSequence`s of the batch.
        inputs: `ModelInputs` that were made of them.
    """
    if engine.model_config.cogvlm_style:
        # Its positions count whole images, so none may be resumed. The trie is still empty: blocks
        # enter it after their forward pass, and this comes before the first.
        prefix_cache_of(engine.scheduler.block_trie).share_text_only()
    vision = inputs.vision_inputs
    if vision is not None and vision.input_embedding_indexing is not None:
        width = vision.input_embedding_indexing.shape[1]
        vision.input_embedding_indexing = image_positions(messages, width)


def image_positions(messages: List[Any], width: int) -> torch.Tensor:
    """Which tokens of a batch are computed from image features.

    Args:
        messages: `SchedulerSequence`s; their tokens from `history_len` on are to be computed.
        width: tokens of the longest.

    Returns:
        [messages, width] bool.
    """
    positions = torch.zeros(len(messages), width, dtype=torch.bool)
    for row, seq in zip(positions, messages):
        for image in seq.input_embeddings:
            # an image that is resumed starts before the first token: as a negative index that
            # would count from the end
            start, end = (max(0, at - seq.history_len) for at in (image.start, image.end))
            row[start:end] = True
    return positions
