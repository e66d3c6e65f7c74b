"""`InternViT` from the weights of an InternVL2 model, ours or of a checkpoint's own code."""
import re
from typing import Any, Dict, Tuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from lmdeploy_ext.vision.linear import pack
from lmdeploy_ext.vision.vit import CENTRE, SPREAD, InternViT, VitShape
from lmdeploy_ext.vl.internvl import MEAN, STD

Tensors = Dict[str, torch.Tensor]
_EMBEDDINGS, _LAYER = 'vision_model.embeddings', 'vision_model.encoder.layers'
# Where a layer's weights go, by their published names; `proj` and `fc2` are folded.
_AS_THEY_ARE = {'norm1': 'norm1', 'attn.qkv': 'qkv', 'attn.q_norm': 'q_norm',
                'attn.k_norm': 'k_norm', 'norm2': 'norm2', 'mlp.fc1': 'fc1'}
_SCALED = {'attn.proj': ('proj', 'ls1'), 'mlp.fc2': ('fc2', 'ls2')}
_PROJECTOR = {'mlp1.0': 'projector.0', 'mlp1.1': 'projector.1', 'mlp1.3': 'projector.2'}


def default_dtype(config: Any, device: torch.device) -> torch.dtype:
    """The dtype in which a model's vision tower is exact enough and fastest.

    Args:
        config: of an InternVL model.

    Returns:
        float32 on a CPU, whose half precision is slow. Elsewhere float16, but bfloat16 for towers
        that normalise queries and keys: InternViT-6B's activations overflow in float16. A
        configuration that does not say so is taken for one, as its published default is.
    """
    if torch.device(device).type == 'cpu':
        return torch.float32
    normalised = getattr(config.vision_config, 'qk_normalization', True)
    return torch.bfloat16 if normalised else torch.float16


def load_vit(model: nn.Module, device: torch.device, dtype: torch.dtype) -> InternViT:
    """A model's vision tower and projector for inference.

    What needs no folding shares its memory with the model's where device and dtype agree: norms,
    `qkv`, `fc1` and the projector. The patch embedding, positions, `proj` and `fc2` are new; they
    are folded in float32 and rounded once. In float32 on a CPU oneDNN keeps matrices in a layout
    of its own, so that only norms and biases are shared there.

    Args:
        model: has `config` (an InternVL configuration) and in its `state_dict()` the published
            names `vision_model.*` and `mlp1.*`. Its weights may be on several devices.

    Raises:
        ValueError: weights that are missing, left over, of another shape or on the meta device,
            or a configuration that InternViT does not have.
    """
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()
               if name.startswith(('vision_model.', 'mlp1.'))}
    shape = vit_shape(model.config, weights)
    _check(weights, shape, model.config)
    with torch.device('meta'):
        vit = InternViT(shape)
    vit.load_state_dict(_arranged(weights, shape, torch.device(device), dtype), assign=True)
    vit.requires_grad_(False).eval()
    pack(vit)
    return vit


def vit_shape(config: Any, weights: Tensors) -> VitShape:
    """The shape that a configuration describes; weights say what it leaves open.

    Raises:
        ValueError: a kind that InternViT does not have, or sizes that do not fit each other.
    """
    vision = config.vision_config
    first = f'{_LAYER}.0'
    norm = getattr(vision, 'norm_type', None)
    if norm is None:  # configurations from before there were two
        norm = 'layer_norm' if f'{first}.norm1.bias' in weights else 'rms_norm'
    side = getattr(config, 'force_image_size', None) or vision.image_size
    square = _square(getattr(config, 'downsample_ratio', 0.5))
    version = getattr(config, 'ps_version', 'v1')
    if version not in ('v1', 'v2'):
        raise ValueError(f"ps_version is {version!r}; InternVL has 'v1' and 'v2'")
    projected = weights.get('mlp1.3.weight')
    shape = VitShape(side=side, patch=vision.patch_size, width=vision.hidden_size,
                     heads=vision.num_attention_heads, inner=vision.intermediate_size,
                     layers=_layers(getattr(config, 'select_layer', -1),
                                    vision.num_hidden_layers),
                     norm=norm, eps=getattr(vision, 'layer_norm_eps', 1e-6),
                     qkv_bias=getattr(vision, 'qkv_bias', f'{first}.attn.qkv.bias' in weights),
                     qk_norm=getattr(vision, 'qk_normalization',
                                     f'{first}.attn.q_norm.weight' in weights),
                     activation=getattr(vision, 'hidden_act', 'gelu'),
                     square=square, swapped=version == 'v1',
                     hidden=0 if projected is None else len(projected))
    _check_shape(shape)
    return shape


def _layers(select: int, layers: int) -> int:
    """How many layers are run for hidden state `select`; state 0 is what the first one reads."""
    if not -layers - 1 <= select <= layers:
        raise ValueError(f'select_layer is {select} but the vision tower has {layers} layers; '
                         f'expected {-layers - 1} to {layers}')
    return select if select >= 0 else layers + 1 + select


def _square(ratio: float) -> int:
    """Patches along a side of the squares that pixel shuffle joins."""
    square = round(1 / ratio) if ratio else 0
    if square < 1 or square * ratio != 1:
        raise ValueError(f'downsample_ratio is {ratio}; expected 1 over a whole number, as 0.5')
    return square


def _check_shape(shape: VitShape):
    if shape.norm not in ('layer_norm', 'rms_norm'):
        raise ValueError(f'vision_config.norm_type is {shape.norm!r}; '
                         "InternViT has 'layer_norm' and 'rms_norm'")
    if shape.activation not in ACT2FN:
        raise ValueError(f'vision_config.hidden_act is {shape.activation!r}, which transformers '
                         "does not know; InternViT has 'gelu'")
    if shape.side % (shape.patch * shape.square):
        raise ValueError(f'a tile has {shape.side} pixels a side; expected a multiple of '
                         f'{shape.patch * shape.square}, patch_size / downsample_ratio')
    if shape.width % shape.heads:
        raise ValueError(f'vision_config.hidden_size is {shape.width}; expected a multiple of '
                         f'num_attention_heads {shape.heads}')


def _expected(shape: VitShape, learned_grid: int) -> Dict[str, Tuple[int, ...]]:
    """Published names and shapes of what `_arranged` reads, layers behind the last left out."""
    width, inner, shuffled = shape.width, shape.inner, shape.width * shape.square**2
    expected = {
        f'{_EMBEDDINGS}.class_embedding': (1, 1, width),
        f'{_EMBEDDINGS}.position_embedding': (1, learned_grid**2 + 1, width),
        f'{_EMBEDDINGS}.patch_embedding.weight': (width, 3, shape.patch, shape.patch),
        f'{_EMBEDDINGS}.patch_embedding.bias': (width, ),
        'mlp1.0.weight': (shuffled, ), 'mlp1.0.bias': (shuffled, ),
        'mlp1.1.weight': (shape.hidden, shuffled), 'mlp1.1.bias': (shape.hidden, ),
        'mlp1.3.weight': (shape.hidden, shape.hidden), 'mlp1.3.bias': (shape.hidden, ),
    }
    layer = {
        'ls1': (width, ), 'ls2': (width, ), 'norm1.weight': (width, ), 'norm2.weight': (width, ),
        'attn.qkv.weight': (3 * width, width),
        'attn.proj.weight': (width, width), 'attn.proj.bias': (width, ),
        'mlp.fc1.weight': (inner, width), 'mlp.fc1.bias': (inner, ),
        'mlp.fc2.weight': (width, inner), 'mlp.fc2.bias': (width, ),
    }
    if shape.norm == 'layer_norm':
        layer.update({'norm1.bias': (width, ), 'norm2.bias': (width, )})
    if shape.qkv_bias:
        layer['attn.qkv.bias'] = (3 * width, )
    if shape.qk_norm:
        layer.update({'attn.q_norm.weight': (width, ), 'attn.k_norm.weight': (width, )})
    for index in range(shape.layers):
        expected.update({f'{_LAYER}.{index}.{name}': size for name, size in layer.items()})
    return expected


def _check(weights: Tensors, shape: VitShape, config: Any):
    """Raise ValueError unless the weights that are read are there, whole and of their shapes."""
    vision = config.vision_config
    expected = _expected(shape, vision.image_size // vision.patch_size)
    behind = range(shape.layers, vision.num_hidden_layers)
    unread = {name for name in weights if _layer_of(name) in behind}
    missing = sorted(expected.keys() - weights.keys())
    surplus = sorted(weights.keys() - expected.keys() - unread)
    if missing or surplus:
        found = [f'{len(names)} {kind} ({_some(names)})'
                 for kind, names in (('missing', missing), ('left over', surplus)) if names]
        raise ValueError(f"the vision weights are not InternViT's: {', '.join(found)}; check that "
                         'the checkpoint and its config.json belong together')
    for name, size in expected.items():
        if weights[name].is_meta:
            raise ValueError(f'{name} is on the meta device, so it has no values: the model was '
                             'built without weights or offloaded; load it whole onto devices')
        if tuple(weights[name].shape) != size:
            raise ValueError(f'{name} has the shape {list(weights[name].shape)}, but its '
                             f'config.json makes it {list(size)}; check that they belong together')


def _layer_of(name: str) -> int:
    found = re.match(re.escape(_LAYER) + r'\.(\d+)\.', name)
    return int(found[1]) if found else -1


def _some(names) -> str:
    return ', '.join(names[:3]) + (', …' if len(names) > 3 else '')


def _arranged(weights: Tensors, shape: VitShape, device: torch.device,
              dtype: torch.dtype) -> Tensors:
    """The state dict of `InternViT`, from weights that `_check` let pass."""
    wide = {name: tensor.to(device, torch.float32) for name, tensor in weights.items()
            if name.startswith(_EMBEDDINGS)}
    embedding, table = _embedding(wide, shape)
    black = torch.tensor(-CENTRE / SPREAD, device=device)
    arranged = {'embedding.weight': embedding.to(dtype), 'table': table.to(dtype),
                'black': black.to(dtype)}
    moves = dict(_PROJECTOR)
    for index in range(shape.layers):
        moves.update({f'{_LAYER}.{index}.{old}': f'layers.{index}.{new}'
                      for old, new in _AS_THEY_ARE.items()})
        for old, (new, scale) in _SCALED.items():
            factor = weights[f'{_LAYER}.{index}.{scale}'].to(device, torch.float32)
            for kind, by in (('weight', factor[:, None]), ('bias', factor)):
                unscaled = weights[f'{_LAYER}.{index}.{old}.{kind}'].to(device, torch.float32)
                arranged[f'layers.{index}.{new}.{kind}'] = (unscaled * by).to(dtype)
    for name, tensor in weights.items():
        module, _, kind = name.rpartition('.')
        if module in moves:
            arranged[f'{moves[module]}.{kind}'] = tensor.to(device, dtype)
    return arranged


def _embedding(weights: Tensors, shape: VitShape) -> Tuple[torch.Tensor, torch.Tensor]:
    """The patch embedding for pixels as `InternViT` scales them, and the table of its rows.

    A published model takes (p / 255 - mean) / std and ours y = (p - CENTRE) / SPREAD, so that
    y has the factor SPREAD / 255 / std and CENTRE / 255 - mean goes, over std, into the bias.

    Args:
        weights: of `vision_model.embeddings`, float32.

    Returns:
        [width, patch_values] and [1 + patches, width].
    """
    weight = weights[f'{_EMBEDDINGS}.patch_embedding.weight']  # [width, 3, patch, patch]
    bias = weights[f'{_EMBEDDINGS}.patch_embedding.bias']
    mean, std = (weight.new_tensor(values) for values in (MEAN, STD))
    of_pixels = (weight * (SPREAD / 255 / std)[:, None, None]).permute(0, 2, 3, 1).flatten(1)
    bias = bias + weight.sum((2, 3)) @ ((CENTRE / 255 - mean) / std)
    of_pixels = F.pad(of_pixels, (0, shape.patch_values - of_pixels.shape[1]))
    positions = _positions(weights[f'{_EMBEDDINGS}.position_embedding'][0], shape.grid)
    of_class = weights[f'{_EMBEDDINGS}.class_embedding'][0]
    return of_pixels, torch.cat([of_class, bias.expand(shape.grid**2, -1)]) + positions


def _positions(learned: torch.Tensor, grid: int) -> torch.Tensor:
    """Positions of the class token and of `grid` x `grid` patches, bicubic between the learned.

    Args:
        learned: float32 [1 + patches, width].
    """
    learned_grid = round((len(learned) - 1)**0.5)
    if grid == learned_grid:
        return learned
    planes = learned[1:].T.unflatten(1, (learned_grid, learned_grid))[None]
    planes = F.interpolate(planes, size=(grid, grid), mode='bicubic', align_corners=False)
    return torch.cat([learned[:1], planes[0].flatten(1).T])
