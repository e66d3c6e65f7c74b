"""InternViT, the vision tower of InternVL2: the reference that faster backends are compared with.

Module names are those of the published checkpoints (InternViT-300M-448px, InternViT-6B-448px); the
model is described in https://arxiv.org/abs/2312.14238. Attention is written out (scores, softmax,
product), as the stock path computes it.
"""
from typing import Optional, Tuple, Union

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.modeling_utils import PreTrainedModel

from .configuration import InternVisionConfig
from .norm import RMSNorm


def _norm(config: InternVisionConfig) -> nn.Module:
    kind = RMSNorm if config.norm_type == 'rms_norm' else nn.LayerNorm
    return kind(config.hidden_size, eps=config.layer_norm_eps)


class InternVisionEmbeddings(nn.Module):
    """Patches, a class token in front of them, and learned positions."""

    def __init__(self, config: InternVisionConfig):
        super().__init__()
        self.grid = config.image_size // config.patch_size
        self.class_embedding = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.patch_embedding = nn.Conv2d(config.num_channels,
                                         config.hidden_size,
                                         kernel_size=config.patch_size,
                                         stride=config.patch_size)
        self.position_embedding = nn.Parameter(
            torch.empty(1, self.grid**2 + 1, config.hidden_size))

    def positions(self, height: int, width: int) -> torch.Tensor:
        """Positions of the class token and of `height` x `width` patches, bicubic between the
        learned ones: [1, 1 + height * width, hidden]."""
        if (height, width) == (self.grid, self.grid):
            return self.position_embedding
        of_class, of_patches = self.position_embedding.split([1, self.grid**2], dim=1)
        planes = of_patches.float().reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        planes = F.interpolate(planes, size=(height, width), mode='bicubic', align_corners=False)
        return torch.cat([of_class, planes.flatten(2).transpose(1, 2).to(of_class.dtype)], dim=1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """pixel_values: [tiles, channels, height, width] -> [tiles, 1 + patches, hidden]."""
        patches = self.patch_embedding(pixel_values)  # [tiles, hidden, grid height, grid width]
        height, width = patches.shape[-2:]
        of_class = self.class_embedding.expand(len(patches), -1, -1)
        tokens = torch.cat([of_class, patches.flatten(2).transpose(1, 2)], dim=1)
        return tokens + self.positions(height, width)


class InternAttention(nn.Module):
    """Multi-head self-attention over all patches of a tile."""

    def __init__(self, config: InternVisionConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.scale = (config.hidden_size // self.num_heads)**-0.5
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.qkv_bias)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.attn_drop = nn.Dropout(config.attention_dropout)
        self.proj_drop = nn.Dropout(config.dropout)
        self.qk_normalization = config.qk_normalization
        if config.qk_normalization:  # over all heads together, and RMSNorm in every released model
            self.q_norm = RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.k_norm = RMSNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tiles, tokens, hidden] -> the same shape."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if self.qk_normalization:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                             for x in (query, key, value))  # [tiles, heads, tokens, head_dim]
        scores = (query * self.scale) @ key.transpose(-2, -1)  # [tiles, heads, tokens, tokens]
        mixed = self.attn_drop(scores.softmax(dim=-1)) @ value
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))


class InternMLP(nn.Module):
    """Two linear layers."""

    def __init__(self, config: InternVisionConfig):
        super().__init__()
        self.act = ACT2FN[config.hidden_act]
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., hidden] -> the same shape."""
        return self.fc2(self.act(self.fc1(x)))


class InternVisionEncoderLayer(nn.Module):
    """A pre-norm transformer layer whose branches are scaled by LayerScale.

    LayerScale: https://arxiv.org/abs/2103.17239. LMDeploy names this class where it spreads a
    model over devices, so that no layer is split.
    """

    def __init__(self, config: InternVisionConfig, drop_path: float):
        super().__init__()
        self.attn = InternAttention(config)
        self.mlp = InternMLP(config)
        self.norm1 = _norm(config)
        self.norm2 = _norm(config)
        self.ls1 = nn.Parameter(torch.full((config.hidden_size, ), config.initializer_factor))
        self.ls2 = nn.Parameter(torch.full((config.hidden_size, ), config.initializer_factor))
        self.drop_path = drop_path

    def _maybe_dropped(self, branch: torch.Tensor) -> torch.Tensor:
        """Stochastic depth (https://arxiv.org/abs/1603.09382): in training, some tiles skip it."""
        if not self.training or not self.drop_path:
            return branch
        kept = torch.rand(len(branch), 1, 1, device=branch.device) >= self.drop_path
        return branch * kept / (1 - self.drop_path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tiles, tokens, hidden] -> the same shape."""
        x = x + self._maybe_dropped(self.attn(self.norm1(x)) * self.ls1)
        return x + self._maybe_dropped(self.mlp(self.norm2(x)) * self.ls2)


class InternVisionEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: InternVisionConfig):
        super().__init__()
        deepest = max(config.num_hidden_layers - 1, 1)
        self.layers = nn.ModuleList(
            InternVisionEncoderLayer(config, config.drop_path_rate * index / deepest)
            for index in range(config.num_hidden_layers))

    def forward(self,
                x: torch.Tensor,
                output_hidden_states: bool = False) -> BaseModelOutput:
        """x: [tiles, tokens, hidden] -> last_hidden_state of that shape; on request hidden_states,
        which are x and the output of each layer."""
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
            if not output_hidden_states:
                states = states[-1:]
        return BaseModelOutput(last_hidden_state=states[-1],
                               hidden_states=tuple(states) if output_hidden_states else None)


class InternVisionModel(PreTrainedModel):
    """InternViT without a head."""
    config_class = InternVisionConfig
    main_input_name = 'pixel_values'
    _no_split_modules = ['InternVisionEncoderLayer']

    def __init__(self, config: InternVisionConfig):
        super().__init__(config)
        self.embeddings = InternVisionEmbeddings(config)
        self.encoder = InternVisionEncoder(config)
        self.post_init()

    def _init_weights(self, module: nn.Module):
        """Small normal weights, zero biases; norms and layer scales are right as built."""
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, InternVisionEmbeddings):
            nn.init.normal_(module.class_embedding, std=std)
            nn.init.normal_(module.position_embedding, std=std)

    def get_input_embeddings(self) -> nn.Module:
        """The module that embeds pixels."""
        return self.embeddings

    def forward(self,
                pixel_values: torch.Tensor,
                output_hidden_states: Optional[bool] = None,
                return_dict: Optional[bool] = None) -> Union[Tuple, BaseModelOutputWithPooling]:
        """Encode tiles.

        Args:
            pixel_values: [tiles, 3, height, width], normalised, in the weights' dtype.
            output_hidden_states: give `hidden_states` too, one more than there are layers; default
                from the configuration.
            return_dict: False gives a tuple; default from the configuration.

        Returns:
            last_hidden_state [tiles, 1 + patches, hidden] (no norm follows the last layer),
            pooler_output [tiles, hidden] (the class token's row) and hidden_states.

        Raises:
            ValueError: pixel_values of another shape, or sides that are not whole patches.
        """
        patch = self.config.patch_size
        if pixel_values.dim() != 4 or any(side % patch for side in pixel_values.shape[2:]):
            raise ValueError(f'pixel_values have the shape {list(pixel_values.shape)}; expected '
                             f'[tiles, {self.config.num_channels}, height, width], '
                             f'height and width multiples of {patch}')
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        encoded = self.encoder(self.embeddings(pixel_values), output_hidden_states)
        output = BaseModelOutputWithPooling(last_hidden_state=encoded.last_hidden_state,
                                            pooler_output=encoded.last_hidden_state[:, 0],
                                            hidden_states=encoded.hidden_states)
        if return_dict is None:
            return_dict = self.config.use_return_dict
        return output if return_dict else output.to_tuple()
