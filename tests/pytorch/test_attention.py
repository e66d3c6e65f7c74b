"""Paged attention against a dense one, written out."""
import itertools
from types import SimpleNamespace

import pytest
import torch

from lmdeploy_ext.pytorch.attention import CpuAttentionBuilder, CpuAttentionMetadata
from lmdeploy_ext.pytorch.limits import UnsupportedOnCpu

BLOCK, DIM, KV_HEADS = 4, 8, 2
TOLERANCE = dict(atol=1e-5, rtol=1e-5)  # float32 sums in another order


def dense(query, keys, values, scale, window, cap):
    """Attention of the last tokens of a sequence: query [new, heads, dim], keys [all, kv, dim]."""
    group = query.size(1) // keys.size(1)
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum('qhd,khd->hqk', query, keys) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    of_key = torch.arange(len(keys))[None]
    of_query = torch.arange(len(keys) - len(query), len(keys))[:, None]
    hidden = of_key > of_query
    if window:
        hidden |= of_key <= of_query - window
    return torch.einsum('hqk,khd->qhd', scores.masked_fill(hidden, -1e30).softmax(-1), values)


class Paged:
    """Sequences in a cache whose blocks are handed out in random order."""

    def __init__(self, lengths, blocks=64, v_dim=DIM):
        torch.manual_seed(0)
        free = itertools.chain(torch.randperm(blocks).tolist())
        self.k_cache = torch.zeros(blocks, BLOCK, KV_HEADS, DIM)
        self.v_cache = torch.zeros(blocks, BLOCK, KV_HEADS, v_dim)
        self.keys = [torch.randn(n, KV_HEADS, DIM) for n in lengths]
        self.values = [torch.randn(n, KV_HEADS, v_dim) for n in lengths]
        rows = [[next(free) for _ in range(-(-n // BLOCK))] for n in lengths]
        width = max(map(len, rows))
        self.offsets = torch.tensor([row + [0] * (width - len(row)) for row in rows])

    def forward(self, attention, query, start, end, is_decoding=False):
        """Attention of tokens start..end of each sequence, given with their keys and values."""
        q_lens = torch.tensor([b - a for a, b in zip(start, end)])
        context = SimpleNamespace(q_seqlens=q_lens, kv_seqlens=torch.tensor(end),
                                  block_offsets=self.offsets, is_decoding=is_decoding,
                                  kv_caches=[(self.k_cache, self.v_cache)])
        new = [torch.cat([x[a:b] for x, a, b in zip(tensors, start, end)])
               for tensors in (query, self.keys, self.values)]
        out = attention.forward(*new, self.k_cache, self.v_cache,
                                CpuAttentionMetadata.from_context(context))
        return out.split(q_lens.tolist())


@pytest.mark.parametrize('heads', [2, 6])
@pytest.mark.parametrize('fields', [dict(), dict(sliding_window=3), dict(logit_softcapping=2.0),
                                    dict(sliding_window=5, logit_softcapping=1.5),
                                    dict(scale=0.2), dict(sliding_window=-1)], ids=str)
def test_prefill_history_and_decoding(heads, fields):
    lengths = [1, 3, 4, 9, 17]
    paged = Paged(lengths)
    query = [torch.randn(n, heads, DIM) for n in lengths]
    attention = CpuAttentionBuilder.build(heads, DIM, num_kv_heads=KV_HEADS, **fields)
    # the whole prompt, the rest of a prompt, and one token after another
    for start in ([0] * 5, [0, 1, 3, 4, 10], [n - 1 for n in lengths]):
        if any(start):
            paged.forward(attention, query, [0] * 5, [max(s, 1) for s in start])
        outs = paged.forward(attention, query, start, lengths, is_decoding=start[-1] == 16)
        for out, q, k, v, begin in zip(outs, query, paged.keys, paged.values, start):
            expected = dense(q[begin:], k, v, fields.get('scale', DIM**-0.5),
                             max(fields.get('sliding_window', 0), 0),
                             fields.get('logit_softcapping'))
            torch.testing.assert_close(out, expected, **TOLERANCE)


def test_values_of_another_size_than_keys():
    paged = Paged([5, 7], v_dim=3)
    query = [torch.randn(n, 4, DIM) for n in (5, 7)]
    attention = CpuAttentionBuilder.build(4, DIM, num_kv_heads=KV_HEADS, v_head_size=3)
    for out, q, k, v in zip(paged.forward(attention, query, [0, 0], [5, 7]), query, paged.keys,
                            paged.values):
        torch.testing.assert_close(out, dense(q, k, v, DIM**-0.5, 0, None), **TOLERANCE)


def test_no_token_is_written_into_the_block_of_another_sequence():
    lengths = [6, 3]
    paged = Paged(lengths)
    query = [torch.randn(n, 2, DIM) for n in lengths]
    paged.forward(CpuAttentionBuilder.build(2, DIM, num_kv_heads=KV_HEADS), query, [0, 0], lengths)
    for row, keys in zip(paged.offsets, paged.keys):
        stored = paged.k_cache[row].flatten(0, 1)[:len(keys)]
        assert torch.equal(stored, keys)
    assert paged.k_cache.flatten(1).any(1).sum() == 3  # blocks


def test_alibi_is_refused_by_name():
    with pytest.raises(UnsupportedOnCpu, match='ALiBi, which needs a GPU'):
        CpuAttentionBuilder.build(2, DIM, alibi=True)
