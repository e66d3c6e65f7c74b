"""Paged attention in plain PyTorch.

The KV cache is paged as in vLLM (https://arxiv.org/abs/2309.06180): a sequence owns blocks of
`block_size` token slots, listed in its row of `block_offsets`.
"""
from dataclasses import dataclass
from typing import List, Optional

import torch
import torch.nn.functional as F
from lmdeploy.pytorch.backends.attention import AttentionBuilder, AttentionImpl, AttentionMetadata

from .limits import UnsupportedOnCpu


@dataclass
class CpuAttentionMetadata(AttentionMetadata):
    """What all layers of one forward share.

    Attributes:
        slots: [new tokens] int64, index into the token slots of the cache for each new token.
        starts: for each sequence, index of its first new token.
        q_lens: for each sequence, number of new tokens.
        kv_lens: for each sequence, number of tokens in the cache, the new ones included.
    """
    slots: torch.Tensor = None
    starts: List[int] = None
    q_lens: List[int] = None
    kv_lens: List[int] = None

    @classmethod
    def from_context(cls, context) -> 'CpuAttentionMetadata':
        """Metadata of upstream's `StepContext`."""
        q_lens, kv_lens = context.q_seqlens, context.kv_seqlens
        starts = q_lens.cumsum(0) - q_lens
        block_size = context.kv_caches[0][0].size(1)
        sequence = torch.repeat_interleave(torch.arange(len(q_lens)), q_lens)  # [new tokens]
        position = torch.arange(len(sequence)) + (kv_lens - q_lens - starts)[sequence]
        block = context.block_offsets[sequence, position // block_size]
        return cls(is_decoding=context.is_decoding,
                   block_offsets=context.block_offsets,
                   q_start_loc=starts,
                   q_seqlens=q_lens,
                   kv_seqlens=kv_lens,
                   slots=block * block_size + position % block_size,
                   starts=starts.tolist(),
                   q_lens=q_lens.tolist(),
                   kv_lens=kv_lens.tolist())


class CpuAttention(AttentionImpl[CpuAttentionMetadata]):
    """Causal attention with grouped queries, sliding window and capped scores.

    Queries of the heads that share a key are laid out as further query positions of that key's
    head, so keys and values are never repeated in memory.
    """

    def forward(self,
                query: torch.Tensor,
                key: torch.Tensor,
                value: torch.Tensor,
                k_cache: torch.Tensor,
                v_cache: torch.Tensor,
                attn_metadata: CpuAttentionMetadata,
                k_scales_zeros: Optional[torch.Tensor] = None,
                v_scales_zeros: Optional[torch.Tensor] = None,
                inplace: bool = True) -> torch.Tensor:
        """Store the new keys and values, and attend to all that the sequences have.

        Args:
            query: [new tokens, heads, head_dim].
            key, value: [new tokens, kv heads, head_dim or v_head_dim].
            k_cache, v_cache: [blocks, block_size, kv heads, head_dim or v_head_dim], written to.
            attn_metadata: of this forward.
            k_scales_zeros, v_scales_zeros: of a quantised cache, which the CPU backend refuses.
            inplace: not used; no argument but the caches is written to.

        Returns:
            [new tokens, heads, v_head_dim].
        """
        k_cache.flatten(0, 1).index_copy_(0, attn_metadata.slots, key)
        v_cache.flatten(0, 1).index_copy_(0, attn_metadata.slots, value)
        attend = self._decode if attn_metadata.is_decoding else self._prefill
        return attend(query, k_cache, v_cache, attn_metadata)

    def _decode(self, query, k_cache, v_cache, metadata):
        """One new token a sequence: all sequences at once, padded to the longest."""
        longest, block_size = max(metadata.kv_lens), k_cache.size(1)
        blocks = metadata.block_offsets[:, :-(-longest // block_size)]
        k, v = (cache[blocks].flatten(1, 2)[:, :longest].transpose(1, 2)
                for cache in (k_cache, v_cache))  # [sequences, kv heads, longest, dim]
        lengths = metadata.kv_seqlens[:, None]  # [sequences, 1]
        visible = self._visible(lengths - 1, torch.arange(longest))[:, None, None]
        q = query.unflatten(1, (k.size(1), -1))  # [sequences, kv heads, group, dim]
        return self._attend(q, k, v, visible).flatten(1, 2)

    def _prefill(self, query, k_cache, v_cache, metadata):
        """Many new tokens a sequence: sequence by sequence, so that none is padded."""
        out = query.new_empty(*query.shape[:-1], v_cache.size(-1))
        block_size, kv_heads = k_cache.shape[1:3]
        for index, start in enumerate(metadata.starts):
            q_len, kv_len = metadata.q_lens[index], metadata.kv_lens[index]
            blocks = metadata.block_offsets[index, :-(-kv_len // block_size)]
            rows = slice(start, start + q_len)
            q = query[rows].unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
            k, v = (cache[blocks].flatten(0, 1)[:kv_len].transpose(0, 1)[:, None]
                    for cache in (k_cache, v_cache))  # [kv heads, 1, kv_len, dim]
            k, v = (x.expand(-1, q.size(1), -1, -1) for x in (k, v))
            visible = None
            if q_len < kv_len or self._is_windowed():
                visible = self._visible(torch.arange(kv_len - q_len, kv_len)[:, None],
                                        torch.arange(kv_len))
            mixed = self._attend(q, k, v, visible)  # [kv heads, group, q_len, dim]
            out[rows] = mixed.permute(2, 0, 1, 3).flatten(1, 2)
        return out

    def _is_windowed(self) -> bool:
        return self.sliding_window is not None and self.sliding_window > 0

    def _visible(self, of_query: torch.Tensor, of_key: torch.Tensor) -> torch.Tensor:
        """Which keys a query sees, from the positions of both. A window counts the query itself,
        as in transformers (upstream's CUDA kernel sees one token more)."""
        visible = of_key <= of_query
        if self._is_windowed():
            visible = visible & (of_key > of_query - self.sliding_window)
        return visible

    def _attend(self, q, k, v, visible):
        """Attention of [.., queries, dim] to [.., keys, dim]; without a mask, causal."""
        if not self.logit_softcapping:
            return F.scaled_dot_product_attention(q, k, v, visible, is_causal=visible is None,
                                                  scale=self.scale)
        if visible is None:
            visible = self._visible(torch.arange(q.size(-2))[:, None], torch.arange(k.size(-2)))
        cap = self.logit_softcapping
        scores = cap * torch.tanh(q @ k.transpose(-2, -1) * (self.scale / cap))
        return scores.masked_fill(~visible, float('-inf')).softmax(-1) @ v


class CpuAttentionBuilder(AttentionBuilder[CpuAttentionMetadata]):
    """Builds the attention of a layer."""

    @staticmethod
    def build(num_heads: int,
              head_size: int,
              scale: Optional[float] = None,
              num_kv_heads: Optional[int] = None,
              v_head_size: Optional[int] = None,
              alibi: bool = False,
              sliding_window: Optional[int] = None,
              logit_softcapping: Optional[float] = None,
              **kwargs) -> CpuAttention:
        """The attention of one layer.

        Raises:
            UnsupportedOnCpu: the model uses ALiBi.
        """
        if alibi:
            raise UnsupportedOnCpu('This model uses ALiBi, which needs a GPU: the CPU backend has '
                                   'no attention with linear biases')
        return CpuAttention(num_heads, head_size, scale, num_kv_heads, v_head_size, alibi,
                            sliding_window, logit_softcapping)
