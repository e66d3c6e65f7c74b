"""InternViT, pixel shuffle and projector, arranged for inference; see docs/vision.md.

It computes what `lmdeploy_ext.models` computes with the published module names; that is the
reference of its tests. Model: https://arxiv.org/abs/2312.14238, https://arxiv.org/abs/2404.16821.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lmdeploy_ext.models import norm
from lmdeploy_ext.vision.linear import Linear

# Pixels enter as (p - CENTRE) / SPREAD, which float16 and bfloat16 hold exactly.
CENTRE, SPREAD = 128, 64
# Rows of a matrix product start at multiples of 16 bytes in float16, as tensor cores want them.
ALIGNMENT = 8
# Torch has its own from 2.4 on, which at first squared in the input's dtype; 2.9 has a kernel.
_HAS_RMS_NORM = torch.__version__ >= '2.9'


@dataclass(frozen=True)
class VitShape:
    """The sizes and kinds of an InternViT with its projector.

    Attributes:
        side: of a tile, in pixels.
        patch: side of a patch, in pixels.
        width: of a patch's state, `hidden_size` of the tower.
        heads, inner, layers: attention heads, width inside the MLP, layers that are run.
        norm: `layer_norm` or `rms_norm`, around attention and MLP.
        eps: of every norm in the tower.
        qkv_bias: whether the projection to queries, keys and values has a bias.
        qk_norm: whether queries and keys are normalised, over all heads together.
        activation: of the MLP, by its name in transformers.
        square: each square of `square` x `square` patches becomes one row of features.
        swapped: rows and columns of the features are exchanged (`ps_version` v1).
        hidden: length of a row of features.
    """
    side: int
    patch: int
    width: int
    heads: int
    inner: int
    layers: int
    norm: str
    eps: float
    qkv_bias: bool
    qk_norm: bool
    activation: str
    square: int
    swapped: bool
    hidden: int

    @property
    def grid(self) -> int:
        """Patches along a side of a tile."""
        return self.side // self.patch

    @property
    def tokens(self) -> int:
        """Rows of features of a tile."""
        return (self.grid // self.square)**2

    @property
    def patch_values(self) -> int:
        """Values of a patch, filled up to a multiple of `ALIGNMENT`."""
        return -(-3 * self.patch**2 // ALIGNMENT) * ALIGNMENT


class RMSNorm(norm.RMSNorm):
    """The reference's, in one kernel where torch has that in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width] -> the same shape."""
        if _HAS_RMS_NORM:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return super().forward(x)


def _norm(shape: VitShape) -> nn.Module:
    kind = RMSNorm if shape.norm == 'rms_norm' else nn.LayerNorm
    return kind(shape.width, eps=shape.eps)


class VitLayer(nn.Module):
    """A pre-norm transformer layer; layer scale is part of `proj` and `fc2`."""

    def __init__(self, shape: VitShape):
        super().__init__()
        self.heads = shape.heads
        self.norm1 = _norm(shape)
        self.qkv = Linear(shape.width, 3 * shape.width, bias=shape.qkv_bias)
        self.q_norm = RMSNorm(shape.width, shape.eps) if shape.qk_norm else None
        self.k_norm = RMSNorm(shape.width, shape.eps) if shape.qk_norm else None
        self.proj = Linear(shape.width, shape.width)
        self.norm2 = _norm(shape)
        self.fc1 = Linear(shape.width, shape.inner, activation=shape.activation)
        self.fc2 = Linear(shape.inner, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tiles, patches, width], which is overwritten with the result."""
        x = self.proj(self.attention(self.norm1(x)), added_to=x)
        return self.fc2(self.fc1(self.norm2(x)), added_to=x)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Each patch's mixture of values: [tiles, patches, width], heads side by side."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if self.q_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in (query, key, value))  # [tiles, heads, patches, head_dim]
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).flatten(2)


class InternViT(nn.Module):
    """Tiles to rows of features. Parameters are set by `vit_weights`, once, for inference.

    Nothing in `forward` waits for the device, and no shape depends on values.

    Attributes:
        side, tokens, hidden: as in `VitShape`.
    """

    def __init__(self, shape: VitShape):
        super().__init__()
        self.shape = shape
        self.side, self.tokens, self.hidden = shape.side, shape.tokens, shape.hidden
        # Class token and patches' bias with their positions: what a tile's rows begin with.
        self.table = nn.Parameter(torch.empty(1 + shape.grid**2, shape.width))
        # A scalar beside bytes gives a sum its dtype: bytes become floats in the one pass.
        self.black = nn.Parameter(torch.empty(()))
        self.embedding = Linear(shape.patch_values, shape.width, bias=False)
        self.layers = nn.ModuleList(VitLayer(shape) for _ in range(shape.layers))
        shuffled = shape.width * shape.square**2
        self.projector = nn.Sequential(nn.LayerNorm(shuffled),
                                       Linear(shuffled, shape.hidden, activation='gelu'),
                                       Linear(shape.hidden, shape.hidden))

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Encode tiles.

        Args:
            tiles: uint8 RGB [n, side, side, 3].

        Returns:
            [n, tokens, hidden] in the weights' dtype.
        """
        x = self.embed(tiles)
        for layer in self.layers:
            x = layer(x)
        return self.projector(shuffle(x[:, 1:], self.shape))

    def embed(self, tiles: torch.Tensor) -> torch.Tensor:
        """What the first layer reads: [n, 1 + patches, width]."""
        values = torch.add(self.black, unfold(tiles, self.shape), alpha=1 / SPREAD)
        return self.embedding(values).add_(self.table)


def unfold(tiles: torch.Tensor, shape: VitShape) -> torch.Tensor:
    """Patches as rows, behind a row for the class token. Bytes are moved, not floats.

    Args:
        tiles: uint8 [n, side, side, 3].

    Returns:
        uint8 [n, 1 + patches, patch_values]; patches row by row, a patch's values by row, column
        and channel. What no pixel fills is `CENTRE`, which enters the model as 0.
    """
    count, grid, patch = len(tiles), shape.grid, shape.patch
    rows = tiles.new_empty((count, 1 + grid**2, shape.patch_values))
    rows[:, 0] = CENTRE
    if shape.patch_values > 3 * patch**2:
        rows[:, 1:, 3 * patch**2:] = CENTRE
    pixels = rows[:, 1:, :3 * patch**2]
    pixels = pixels.unflatten(1, (grid, grid)).unflatten(-1, (patch, 3 * patch))
    pixels.copy_(tiles.reshape(count, grid, patch, grid, 3 * patch).transpose(2, 3))
    return rows


def shuffle(patches: torch.Tensor, shape: VitShape) -> torch.Tensor:
    """Pixel shuffle: the states of each square of patches side by side in one row.

    Args:
        patches: [n, patches, width].

    Returns:
        [n, tokens, width * square**2]; the states in a row are by row and column of the square.
    """
    blocks, square = shape.grid // shape.square, shape.square
    x = patches.reshape(len(patches), blocks, square, blocks, square, shape.width)
    order = (0, 3, 1, 2, 4, 5) if shape.swapped else (0, 1, 3, 2, 4, 5)
    return x.permute(order).reshape(len(patches), shape.tokens, -1)
