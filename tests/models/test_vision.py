"""InternViT: the published layout, and arithmetic against independent computations."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lmdeploy_ext.models.configuration import InternVisionConfig
from lmdeploy_ext.models.norm import RMSNorm
from lmdeploy_ext.models.shapes import VIT_300M, VIT_TINY
from lmdeploy_ext.models.vision import InternVisionModel


def published_layout(hidden, inner, layers, patches, qkv_bias, norm_bias, qk_norm):
    """Names and shapes of a published InternViT checkpoint, patch 14."""
    names = {
        'embeddings.class_embedding': (1, 1, hidden),
        'embeddings.position_embedding': (1, patches + 1, hidden),
        'embeddings.patch_embedding.weight': (hidden, 3, 14, 14),
        'embeddings.patch_embedding.bias': (hidden, ),
    }
    for i in range(layers):
        layer = {
            'ls1': (hidden, ),
            'ls2': (hidden, ),
            'norm1.weight': (hidden, ),
            'norm2.weight': (hidden, ),
            'attn.qkv.weight': (3 * hidden, hidden),
            'attn.proj.weight': (hidden, hidden),
            'attn.proj.bias': (hidden, ),
            'mlp.fc1.weight': (inner, hidden),
            'mlp.fc1.bias': (inner, ),
            'mlp.fc2.weight': (hidden, inner),
            'mlp.fc2.bias': (hidden, ),
        }
        if qkv_bias:
            layer['attn.qkv.bias'] = (3 * hidden, )
        if norm_bias:
            layer.update({'norm1.bias': (hidden, ), 'norm2.bias': (hidden, )})
        if qk_norm:
            layer.update({'attn.q_norm.weight': (hidden, ), 'attn.k_norm.weight': (hidden, )})
        names.update({f'encoder.layers.{i}.{name}': shape for name, shape in layer.items()})
    return names


@pytest.mark.parametrize('fields, layout', [
    (VIT_300M, published_layout(1024, 4096, 24, 1024, True, True, False)),
    (dict(image_size=448, num_hidden_layers=45),
     published_layout(3200, 12800, 45, 1024, False, False, True)),
], ids=['300M', '6B'])
def test_state_dict_is_the_published_one(fields, layout):
    with torch.device('meta'):
        model = InternVisionModel(InternVisionConfig(**fields))
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert found == layout


def vit(**fields):
    """A small InternViT whose every weight matters."""
    torch.manual_seed(0)
    model = InternVisionModel(InternVisionConfig(**dict(VIT_TINY, **fields))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.no_grad()
def test_layer_with_layer_norm_equals_torch_multihead_attention():
    layer = vit().encoder.layers[0]
    attention = nn.MultiheadAttention(64, 4, batch_first=True)
    attention.in_proj_weight.copy_(layer.attn.qkv.weight)
    attention.in_proj_bias.copy_(layer.attn.qkv.bias)
    attention.out_proj.load_state_dict(layer.attn.proj.state_dict())
    x = torch.randn(3, 17, 64)
    normed = F.layer_norm(x, (64, ), layer.norm1.weight, layer.norm1.bias, 1e-6)
    expected = x + layer.ls1 * attention(normed, normed, normed, need_weights=False)[0]
    normed = F.layer_norm(expected, (64, ), layer.norm2.weight, layer.norm2.bias, 1e-6)
    mlp = layer.mlp
    inner = F.gelu(F.linear(normed, mlp.fc1.weight, mlp.fc1.bias))
    expected = expected + layer.ls2 * F.linear(inner, mlp.fc2.weight, mlp.fc2.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_6b_attention_normalises_queries_and_keys_over_all_heads():
    attention = vit(norm_type='rms_norm', qk_normalization=True, qkv_bias=False).encoder.layers[
        0].attn
    x = torch.randn(1, 5, 64)
    query, key, value = (F.linear(x[0], w) for w in attention.qkv.weight.chunk(3))
    query = query / query.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * attention.q_norm.weight
    key = key / key.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * attention.k_norm.weight
    heads = []
    for head in range(4):
        cut = slice(16 * head, 16 * head + 16)
        scores = query[:, cut] @ key[:, cut].T / 4
        heads.append(scores.softmax(-1) @ value[:, cut])
    expected = F.linear(torch.cat(heads, -1), attention.proj.weight, attention.proj.bias)
    torch.testing.assert_close(attention(x)[0], expected, atol=1e-5, rtol=1e-5)


def test_rms_norm_computes_in_fp32():
    """Squares of 300 overflow fp16; the norm of a constant row is its sign times the weight."""
    norm = RMSNorm(8, 1e-6).half()
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    assert norm(x).dtype is torch.float16
    torch.testing.assert_close(norm(x), torch.ones_like(x))


def cubic_1d(values, size):
    """Cubic resampling of one axis (A = -0.75, half-pixel centres, edges repeated), by formula."""

    def weight(t, a=-0.75):
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0

    old = len(values)
    out = np.zeros((size, *values.shape[1:]))
    for i in range(size):
        at = (i + 0.5) * old / size - 0.5
        for tap in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
            out[i] += weight(at - tap) * values[min(max(tap, 0), old - 1)]
    return out


@torch.no_grad()
def test_positions_of_other_grids_are_bicubic_between_the_learned_ones():
    embeddings = vit().embeddings  # 8 x 8
    learned = embeddings.position_embedding[0, 1:].reshape(8, 8, 64).double().numpy()
    expected = cubic_1d(cubic_1d(learned, 12).swapaxes(0, 1), 5).swapaxes(0, 1)
    positions = embeddings.positions(12, 5)
    assert positions.shape == (1, 61, 64)
    torch.testing.assert_close(positions[0, 0], embeddings.position_embedding[0, 0])
    np.testing.assert_allclose(positions[0, 1:].numpy(), expected.reshape(60, 64), atol=1e-5)


@torch.no_grad()
def test_a_tile_of_the_trained_size_gets_the_learned_positions_themselves():
    embeddings = vit().embeddings
    assert embeddings.positions(8, 8) is embeddings.position_embedding


@torch.no_grad()
def test_patches_are_ordered_row_by_row():
    model = vit()
    black = torch.zeros(1, 3, 112, 112)
    spot = black.clone()
    spot[:, :, 14 * 2:14 * 3, 14 * 5:14 * 6] = 1  # row 2, column 5
    changed = (model.embeddings(spot) - model.embeddings(black)).abs().sum(-1)[0]
    assert changed.nonzero().flatten().tolist() == [1 + 2 * 8 + 5]


@torch.no_grad()
def test_outputs():
    model = vit()
    pixels = torch.randn(2, 3, 112, 84)
    plain = model(pixels)
    assert plain.last_hidden_state.shape == (2, 1 + 8 * 6, 64)
    assert plain.hidden_states is None
    torch.testing.assert_close(plain.pooler_output, plain.last_hidden_state[:, 0])
    full = model(pixels, output_hidden_states=True)
    assert len(full.hidden_states) == 3
    torch.testing.assert_close(full.hidden_states[0], model.embeddings(pixels))
    torch.testing.assert_close(full.hidden_states[-1], plain.last_hidden_state)
    assert isinstance(model(pixels, return_dict=False), tuple)


@torch.no_grad()
def test_a_tile_does_not_depend_on_its_batch():
    model, pixels = vit(), torch.randn(3, 3, 112, 112)
    together = model(pixels).last_hidden_state
    torch.testing.assert_close(model(pixels[1:2]).last_hidden_state[0], together[1])


@torch.no_grad()
def test_stochastic_depth_skips_branches_of_tiles_in_training_only():
    layer = vit(drop_path_rate=0.5).encoder.layers[-1]
    x = torch.randn(1, 4, 64).expand(64, 4, 64)
    torch.testing.assert_close(layer(x)[0], layer(x)[1])
    layer.train()
    untouched = (layer(x) == x).flatten(1).all(-1)
    assert 4 <= int(untouched.sum()) <= 32  # a quarter of 64 skip both branches, on average


@pytest.mark.parametrize('shape', [(3, 112, 112), (1, 3, 100, 112), (1, 3, 112, 113)])
def test_pixels_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r'\[tiles, 3, height, width\].*multiples of 14'):
        vit()(torch.zeros(shape))
