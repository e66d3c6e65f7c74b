"""Weights and configurations of all kinds of InternVL models, and those that are none."""
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload, dispatch_model

from lmdeploy_ext.vision.vit_weights import default_dtype, load_vit

from .vit_models import CPU, LIKE_6B, chat_model, errors, random_tiles, reference


def _without(fields, names):
    return {name: value for name, value in fields.items() if name not in names}


class Model:
    """What `load_vit` uses of a model: with other weights, or fields of its configuration gone."""

    def __init__(self, model, weights=None, without=()):
        self._weights = model.state_dict() if weights is None else weights
        vision = model.config.vision_config.to_dict()
        chat = {name: getattr(model.config, name) for name in
                ('select_layer', 'downsample_ratio', 'ps_version', 'force_image_size')}
        self.config = SimpleNamespace(
            vision_config=SimpleNamespace(**_without(vision, without)),
            **_without(chat, without))

    def state_dict(self):
        return self._weights


def load(model, dtype=torch.float32):
    return load_vit(model, CPU, dtype)


@pytest.mark.parametrize('vision', [{}, LIKE_6B])
def test_a_configuration_may_lack_what_the_weights_show(vision):
    """As those of older checkpoints do, whose code had one kind of tower."""
    model = chat_model(vision, select_layer=-1)
    bare = Model(model, without=('norm_type', 'qk_normalization', 'qkv_bias', 'layer_norm_eps',
                                 'hidden_act', 'select_layer', 'force_image_size',
                                 'downsample_ratio'))
    tiles = random_tiles(2)
    assert errors(load(bare)(tiles), reference(model, tiles))[1] < 1e-5


def test_without_a_ps_version_it_is_the_published_default():
    model, tiles = chat_model(ps_version='v1'), random_tiles(1)
    found = load(Model(model, without=('ps_version', )))(tiles)
    assert errors(found, reference(model, tiles))[1] < 1e-5


def test_the_language_model_is_not_needed():
    model, tiles = chat_model(), random_tiles(1)
    expected = reference(model, tiles)
    del model.language_model
    assert errors(load(model)(tiles), expected)[1] < 1e-5


@pytest.mark.filterwarnings('ignore::UserWarning')
def test_a_model_that_accelerate_hooked():
    model, tiles = chat_model(), random_tiles(1)
    expected = reference(model, tiles)
    assert errors(load(dispatch_model(model, {'': 'cpu'}, force_hooks=True))(tiles),
                  expected)[1] < 1e-5


def test_an_offloaded_model_is_refused():
    model = chat_model()
    cpu_offload(model, execution_device=CPU)
    with pytest.raises(ValueError, match=r'vision_model\.\S+ is on the meta.*load it whole'):
        load(model)


def test_what_needs_no_folding_shares_the_models_memory():
    """Half precision on a CPU stands for it on a GPU: both keep matrices as the model has them."""
    model = chat_model().half()
    vit = load(model, torch.float16)
    theirs = model.vision_model.encoder.layers[0]
    for found, expected in [(vit.layers[0].qkv.weight, theirs.attn.qkv.weight),
                            (vit.layers[0].fc1.weight, theirs.mlp.fc1.weight),
                            (vit.layers[0].norm1.bias, theirs.norm1.bias),
                            (vit.projector[1].weight, model.mlp1[1].weight)]:
        assert found.data_ptr() == expected.data_ptr()


def test_the_models_own_weights_stay_as_they_were():
    model = chat_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    load(model)(random_tiles(1))
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_folding_rounds_once():
    """A product of a half precision weight and its layer scale, in float32, is nearest to what
    is kept; rounding the scale to half precision first would be off by another half step."""
    model = chat_model()
    layer = model.vision_model.encoder.layers[0]
    exact = layer.attn.proj.weight.double() * layer.ls1.double()[:, None]
    found = load(model, torch.float16).layers[0].proj.weight
    assert torch.equal(found, exact.half())


def changed(**changes):
    """The weights of a model: some replaced, those of None gone."""
    weights = dict(chat_model().state_dict())
    for name, tensor in changes.items():
        if tensor is None:
            del weights[name]
        else:
            weights[name] = tensor
    return weights


LAYER = 'vision_model.encoder.layers.1'


@pytest.mark.parametrize('changes, message', [
    ({f'{LAYER}.ls1': None}, r'1 missing \(\S+layers\.1\.ls1\).*config\.json belong together'),
    ({'mlp1.3.weight': None}, r'1 missing \(mlp1\.3\.weight\)'),
    ({f'{LAYER}.attn.q_norm.weight': torch.ones(64)}, r'1 left over \(\S+q_norm\.weight\)'),
    ({'vision_model.encoder.layers.2.ls1': torch.ones(64)}, r'1 left over \(\S+layers\.2\.ls1\)'),
    ({'mlp1.3.bias': None, 'mlp1.4.bias': torch.ones(32)},
     r'1 missing \(mlp1\.3\.bias\), 1 left over \(mlp1\.4\.bias\)'),
    ({f'{LAYER}.mlp.fc1.weight': torch.ones(64, 64)},
     r'fc1\.weight has the shape \[64, 64\].*makes it \[128, 64\]'),
    ({'mlp1.1.bias': torch.ones(32, device='meta')}, r'mlp1\.1\.bias is on the meta device'),
])
def test_other_weights_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        load(Model(chat_model(), changed(**changes)))


def test_many_missing_weights_are_counted():
    weights = {name: tensor for name, tensor in chat_model().state_dict().items()
               if 'layers' not in name}
    with pytest.raises(ValueError, match=r'28 missing \(.*, …\)'):
        load(Model(chat_model(), weights))


def test_no_vision_weights_at_all():
    with pytest.raises(ValueError, match='missing'):
        load(Model(chat_model(), {}))


@pytest.mark.parametrize('vision, chat, message', [
    (dict(norm_type='batch_norm'), {}, "norm_type is 'batch_norm'.*'layer_norm' and 'rms_norm'"),
    (dict(hidden_act='gulo'), {}, "hidden_act is 'gulo'.*'gelu'"),
    (dict(num_attention_heads=5), {}, 'hidden_size is 64.*num_attention_heads 5'),
    ({}, dict(force_image_size=110), '110 pixels a side.*multiple of 28'),
    ({}, dict(select_layer=-4), 'select_layer is -4.*2 layers.*-3 to 2'),
    ({}, dict(select_layer=3), 'select_layer is 3.*2 layers.*-3 to 2'),
    ({}, dict(ps_version='v3'), "ps_version is 'v3'.*'v1' and 'v2'"),
    ({}, dict(downsample_ratio=0.4), 'downsample_ratio is 0.4'),
])
def test_configurations_of_something_else_are_refused(vision, chat, message):
    model = Model(chat_model())
    vars(model.config.vision_config).update(vision)
    vars(model.config).update(chat)
    with pytest.raises(ValueError, match=message):
        load(model)


@pytest.mark.parametrize('vision, device, dtype', [
    ({}, 'cpu', torch.float32),
    (LIKE_6B, 'cpu', torch.float32),
    ({}, 'cuda:1', torch.float16),
    (LIKE_6B, 'cuda', torch.bfloat16),
])
def test_default_dtype(vision, device, dtype):
    assert default_dtype(chat_model(vision).config, torch.device(device)) is dtype


def test_default_dtype_where_nothing_is_said_cannot_overflow():
    bare = Model(chat_model(), without=('qk_normalization', ))
    assert default_dtype(bare.config, torch.device('cuda')) is torch.bfloat16
