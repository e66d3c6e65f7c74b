"""Rotary position embedding (https://arxiv.org/abs/2104.09864) with InternLM2's two scalings.

Angles are computed where they are needed: no buffer that a cast to fp16 could round.
"""
from typing import Tuple

import torch

from .configuration import InternLM2Config


def rotary(position_ids: torch.Tensor, config: InternLM2Config,
           dtype: torch.dtype) -> Tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the positions' angles.

    `linear` scaling divides positions by the factor. `dynamic` (NTK-aware) scaling raises the base
    once the highest position of the batch exceeds the length that the model was trained with.

    Args:
        position_ids: [batch, length].

    Returns:
        two tensors [batch, 1, length, head_dim] of `dtype`; the 1 is for the heads.
    """
    dim = config.hidden_size // config.num_attention_heads
    base, positions = float(config.rope_theta), position_ids.float()
    scaling = config.rope_scaling or {'type': None}
    if scaling['type'] == 'linear':
        positions = positions / scaling['factor']
    if scaling['type'] == 'dynamic':
        stretch = max(1.0, (int(position_ids.max()) + 1) / config.max_position_embeddings)
        base *= (scaling['factor'] * stretch - (scaling['factor'] - 1))**(dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, device=position_ids.device).float() / dim
    angles = positions[:, None, :, None] * base**-exponents  # [batch, 1, length, dim / 2]
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [batch, heads, length, head_dim]; channel i is paired with channel i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
