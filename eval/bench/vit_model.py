"""A vision tower with its projector, of random weights and without a language model."""
import copy

import torch
from torch import nn

from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.random_weights import random_tensors
from lmdeploy_ext.models.shapes import SHAPES, shape_config

VOCABULARY = 320  # of shapes that have none of their own; the language model is never built


def vision_model(shape: str, device: torch.device, dtype: torch.dtype,
                 seed: int = 0) -> InternVLChatModel:
    """`InternVLChatModel` for `extract_feature`; its `language_model` is missing.

    Args:
        shape: a key of `models.shapes.SHAPES`.

    Raises:
        ValueError: unknown shape.
    """
    own = SHAPES[shape][1].get('vocab_size') if shape in SHAPES else None
    config = shape_config(shape, own or VOCABULARY)
    with torch.device('meta'):
        model = InternVLChatModel(config)
    del model.language_model
    sizes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tensors = random_tensors(config, sizes, seed, device, dtype)
    model.load_state_dict(dict(tensors), assign=True)
    return model.eval().requires_grad_(False)


def with_sdpa(model: InternVLChatModel) -> InternVLChatModel:
    """The same model, sharing its weights, with `scaled_dot_product_attention` in place of the
    written-out attention and nothing else changed."""
    # weights that a copy already has are not copied
    shared = {id(weight): weight for weight in model.parameters()}
    sdpa = copy.deepcopy(model, shared)
    for layer in sdpa.vision_model.encoder.layers:
        layer.attn = SdpaAttention(layer.attn)
    return sdpa


class SdpaAttention(nn.Module):
    """`InternAttention` with the scores, softmax and product in one operation.

    Args:
        attention: whose weights are used.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tiles, tokens, hidden] -> the same shape."""
        own = self.attention
        query, key, value = own.qkv(x).chunk(3, dim=-1)
        if own.qk_normalization:
            query, key = own.q_norm(query), own.k_norm(key)
        query, key, value = (part.unflatten(-1, (own.num_heads, -1)).transpose(1, 2)
                             for part in (query, key, value))  # [tiles, heads, tokens, head_dim]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return own.proj(mixed.transpose(1, 2).flatten(2))
