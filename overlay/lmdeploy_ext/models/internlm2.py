"""InternLM2 (https://arxiv.org/abs/2403.17297), the language model of InternVL2-2B and 8B.

The plain reference: explicit attention, a mask of all positions, keys and values in transformers'
`Cache`. Module names are those of the published checkpoints.
"""
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from .configuration import InternLM2Config
from .norm import RMSNorm
from .rope import rotary, rotate


class InternLM2Attention(nn.Module):
    """Grouped-query attention whose queries, keys and values come from one matrix.

    The rows of `wqkv` are ordered by key-value head: for each, the heads of its group of queries,
    then one key head, then one value head.
    """

    def __init__(self, config: InternLM2Config, layer_index: int):
        super().__init__()
        self.layer_index = layer_index
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.group = config.num_attention_heads // config.num_key_value_heads
        packed = (config.num_attention_heads + 2 * self.kv_heads) * self.head_dim
        self.wqkv = nn.Linear(config.hidden_size, packed, bias=config.bias)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(self, x: torch.Tensor, cos_sin: Tuple[torch.Tensor, torch.Tensor],
                mask: torch.Tensor, cache: Optional[Cache]) -> torch.Tensor:
        """x: [batch, length, hidden], mask: [batch, 1, length, past + length], added to scores."""
        packed = self.wqkv(x).unflatten(-1, (self.kv_heads, self.group + 2, self.head_dim))
        query, key, value = packed.split([self.group, 1, 1], dim=3)
        query, key, value = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
        query, key = rotate(query, *cos_sin), rotate(key, *cos_sin)  # [batch, heads, length, dim]
        if cache is not None:
            key, value = cache.update(key, value, self.layer_index)
        key, value = (x.repeat_interleave(self.group, dim=1) for x in (key, value))
        scores = query @ key.transpose(-2, -1) * self.head_dim**-0.5 + mask
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(x.dtype)
        return self.wo((weights @ value).transpose(1, 2).flatten(2))


class InternLM2MLP(nn.Module):
    """Gated MLP: w2(act(w1(x)) * w3(x))."""

    def __init__(self, config: InternLM2Config):
        super().__init__()
        self.act = ACT2FN[config.hidden_act]
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., hidden] -> the same shape."""
        return self.w2(self.act(self.w1(x)) * self.w3(x))


class InternLM2DecoderLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, config: InternLM2Config, layer_index: int):
        super().__init__()
        self.attention = InternLM2Attention(config, layer_index)
        self.feed_forward = InternLM2MLP(config)
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, cos_sin: Tuple[torch.Tensor, torch.Tensor],
                mask: torch.Tensor, cache: Optional[Cache]) -> torch.Tensor:
        """x: [batch, length, hidden] -> the same shape."""
        x = x + self.attention(self.attention_norm(x), cos_sin, mask, cache)
        return x + self.feed_forward(self.ffn_norm(x))


class InternLM2PreTrainedModel(PreTrainedModel):
    """What transformers asks of both classes below."""
    config_class = InternLM2Config
    base_model_prefix = 'model'
    _no_split_modules = ['InternLM2DecoderLayer']
    _supports_cache_class = True

    def _init_weights(self, module: nn.Module):
        """Small normal weights, zero biases."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class InternLM2Model(InternLM2PreTrainedModel):
    """The decoder without a head."""

    def __init__(self, config: InternLM2Config):
        super().__init__(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            InternLM2DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.tok_embeddings

    def set_input_embeddings(self, value: nn.Module):
        """Replace the token embedding."""
        self.tok_embeddings = value

    def forward(self,
                input_ids: Optional[torch.Tensor] = None,
                attention_mask: Optional[torch.Tensor] = None,
                position_ids: Optional[torch.Tensor] = None,
                past_key_values: Optional[Cache] = None,
                inputs_embeds: Optional[torch.Tensor] = None,
                use_cache: Optional[bool] = None) -> BaseModelOutputWithPast:
        """Decode.

        Args:
            input_ids: [batch, length], or inputs_embeds [batch, length, hidden].
            attention_mask: [batch, past + length], 0 for padding.
            position_ids: [batch, length]; default: they go on from the cache.
            past_key_values: a cache, which the new keys and values are added to.
            use_cache: begin a cache where none is given; default from the configuration.

        Returns:
            last_hidden_state [batch, length, hidden], normalised, and past_key_values.
        """
        x = self.tok_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        wants_cache = self.config.use_cache if use_cache is None else use_cache
        if past_key_values is None and wants_cache:
            past_key_values = DynamicCache()
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device).unsqueeze(0)
        mask = _causal_mask(x, past, attention_mask)
        cos_sin = rotary(position_ids, self.config, x.dtype)
        for layer in self.layers:
            x = layer(x, cos_sin, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x),
                                       past_key_values=past_key_values)


def _causal_mask(x: torch.Tensor, past: int,
                 attention_mask: Optional[torch.Tensor]) -> torch.Tensor:
    """[batch or 1, 1, length, past + length]: 0 where a query sees a key, else the least float."""
    length = x.shape[1]
    keys = torch.arange(past + length, device=x.device)
    hidden = (keys > keys[past:, None])[None, None]
    if attention_mask is not None:
        hidden = hidden | (attention_mask[:, None, None] == 0)
    return torch.zeros_like(hidden, dtype=x.dtype).masked_fill(hidden, torch.finfo(x.dtype).min)


class InternLM2ForCausalLM(InternLM2PreTrainedModel, GenerationMixin):
    """The decoder with a head over the vocabulary."""
    _tied_weights_keys = ['output.weight']

    def __init__(self, config: InternLM2Config):
        super().__init__(config)
        self.model = InternLM2Model(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.output

    def set_output_embeddings(self, new_embeddings: nn.Module):
        """Replace the head."""
        self.output = new_embeddings

    def forward(self,
                input_ids: Optional[torch.Tensor] = None,
                attention_mask: Optional[torch.Tensor] = None,
                position_ids: Optional[torch.Tensor] = None,
                past_key_values: Optional[Cache] = None,
                inputs_embeds: Optional[torch.Tensor] = None,
                labels: Optional[torch.Tensor] = None,
                use_cache: Optional[bool] = None,
                **unused) -> CausalLMOutputWithPast:
        """Logits in fp32 [batch, length, vocabulary], and the next-token loss for `labels`.

        The arguments are `InternLM2Model.forward`'s; labels: [batch, length], -100 for no loss.
        `generate` passes further ones, which only choose what is returned.
        """
        decoded = self.model(input_ids, attention_mask, position_ids, past_key_values,
                             inputs_embeds, use_cache)
        logits = self.output(decoded.last_hidden_state).float()
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss,
                                      logits=logits,
                                      past_key_values=decoded.past_key_values)

    def prepare_inputs_for_generation(self,
                                      input_ids: torch.Tensor,
                                      past_key_values: Optional[Cache] = None,
                                      attention_mask: Optional[torch.Tensor] = None,
                                      inputs_embeds: Optional[torch.Tensor] = None,
                                      use_cache: Optional[bool] = None,
                                      **unused) -> dict:
        """Inputs of the next forward: what is in `attention_mask` but not in the cache yet."""
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        new = attention_mask.shape[1] - past
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -new:]
        inputs = {'input_ids': input_ids[:, -new:]}
        if inputs_embeds is not None and past == 0:
            generated = input_ids[:, input_ids.shape[1] - (new - inputs_embeds.shape[1]):]
            embedded = self.model.tok_embeddings(generated)
            inputs = {'inputs_embeds': torch.cat([inputs_embeds, embedded], dim=1)}
        return dict(inputs,
                    attention_mask=attention_mask,
                    position_ids=positions,
                    past_key_values=past_key_values,
                    use_cache=use_cache)
