"""Keys of features: nothing that decides features can change without its key, and nothing else
changes it."""
import asyncio
import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.shapes import shape_config
from lmdeploy_ext.vision.content_key import KEY_BYTES, content_key, digest, feature_key
from lmdeploy_ext.vision.model_key import model_key
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_loader import ImageLoader
from lmdeploy_ext.vl.image_rules import PixelRules
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_workers import ImageWorkers
from lmdeploy_ext.vl.tile_policy import TileModel, TilePolicy
from lmdeploy_ext.vl.tiling import TilePlan
from tests.vl.image_files import encoded, picture

PLAN = TilePlan(2, 1, True, 896, 448, 0, 0, 448, 448)
PHOTO = encoded(picture(100, 80), 'PNG')  # 3 x 3 tiles of 32 and a thumbnail
MODEL = TileModel(side=32, tokens=4, max_tiles=12)


def key_and_tiles(reference=PHOTO, model=MODEL, pixels='fast', max_tiles=None, options=None,
                  vision=b'vision', **policy):
    """The key under which a loader of these settings looks up an image of a request, and the
    tiles that it would cut."""
    workers = ImageWorkers(threads=1, in_flight=4)
    settings = ImageSettings(ImageLimits(), PixelRules(upstream=pixels == 'upstream'),
                             TilePolicy(**policy), max_tiles)
    loader = ImageLoader(model, settings, workers)

    async def request():
        image, = await loader.open([reference], [options or {}], keyed=True)
        key = feature_key(image.key, image.plan, settings.rules, vision)
        return key, (await loader.cut(image)).tiles

    try:
        return asyncio.run(request())
    finally:
        workers.close()


def key_of(**settings):
    return key_and_tiles(**settings)[0]


def test_equal_content_has_one_key_whatever_holds_it():
    data = bytes(range(256)) * 9
    assert len(content_key(data)) == KEY_BYTES
    assert len({content_key(each) for each in (data, bytearray(data), memoryview(data),
                                               memoryview(data + b'x')[:-1])}) == 1
    pixels = picture(30, 20)
    assert content_key(pixels) == content_key(pixels.copy(order='F'))
    assert content_key(memoryview(data)[::2]) == content_key(data[::2])


def test_the_same_pixels_of_another_shape_or_as_a_file_are_another_image():
    pixels = picture(30, 20)
    shapes = [(20, 30, 3), (30, 20, 3), (60, 10, 3), (20, 30 * 3, 1), (1, 600, 3)]
    keys = {content_key(pixels.reshape(shape)) for shape in shapes}
    assert len(keys | {content_key(pixels.tobytes())}) == len(shapes) + 1


def test_no_image_at_all_has_a_key_of_its_own():
    empty = [np.empty(shape, np.uint8) for shape in ((0, 3, 3), (3, 0, 3))]
    assert len({content_key(b''), *map(content_key, empty)}) == 3


def test_pixels_of_another_type_are_refused():
    with pytest.raises(ValueError, match='found float32 pixels; expected uint8'):
        content_key(np.zeros((2, 2, 3), np.float32))


@pytest.mark.parametrize('content', [PHOTO, picture(40, 30)], ids=['file', 'pixels'])
def test_a_thousand_images_that_differ_in_one_bit_have_a_thousand_keys(content):
    original = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
    keys = {content_key(content)}
    for index in np.linspace(0, original.size - 1, 1000).astype(int):
        changed = original.copy()
        changed.flat[index] ^= 1 << (index % 8)
        keys.add(content_key(changed.tobytes() if isinstance(content, bytes) else changed))
    assert len(keys) == 1001


@given(st.lists(st.binary(max_size=9), max_size=4), st.lists(st.binary(max_size=9), max_size=4))
def test_parts_cannot_be_cut_in_another_place(one, other):
    assert (digest('x', one) == digest('x', other)) == (one == other)
    assert digest('x', one) != digest('y', one)


def test_every_field_of_the_plan_and_the_rules_counts():
    keys = [feature_key(b'content', PLAN, PixelRules(), b'model')]
    for field in dataclasses.fields(PLAN):
        value = getattr(PLAN, field.name)
        changed = not value if isinstance(value, bool) else value + 1
        plan = dataclasses.replace(PLAN, **{field.name: changed})
        keys.append(feature_key(b'content', plan, PixelRules(), b'model'))
    keys.append(feature_key(b'content', PLAN, PixelRules(upstream=True), b'model'))
    keys.append(feature_key(b'contenT', PLAN, PixelRules(), b'model'))
    keys.append(feature_key(b'content', PLAN, PixelRules(), b'modeL'))
    keys.append(feature_key(b'contentm', PLAN, PixelRules(), b'odel'))
    assert len(set(keys)) == len(keys)


def test_a_field_that_is_added_one_day_counts_too():
    @dataclasses.dataclass(frozen=True)
    class PixelRulesOfTomorrow(PixelRules):
        gamma: float = 1.0

    @dataclasses.dataclass(frozen=True)
    class OtherRules:
        downstream: bool = False

    keys = {feature_key(b'', PLAN, rules, b'') for rules in
            (PixelRules(), PixelRulesOfTomorrow(), PixelRulesOfTomorrow(gamma=2.2), OtherRules())}
    assert len(keys) == 4


@pytest.mark.parametrize('changed', [
    dict(kind='stock'), dict(kind='budget', budget=12), dict(max_shrink=2.0), dict(fit='pad'),
    dict(fit='crop', max_shrink=1.3), dict(thumbnail_from=99), dict(max_tiles=4),
    dict(pixels='upstream'), dict(options={'detail': 'low'}),
    dict(options={'max_dynamic_patch': 2}), dict(model=TileModel(side=32, tokens=4, max_tiles=5)),
    dict(model=TileModel(side=32, tokens=4, max_tiles=12, thumbnail=False)),
    dict(model=TileModel(side=48, tokens=9, max_tiles=12)), dict(vision=b'another'),
    dict(reference=encoded(picture(100, 80, seed=1), 'PNG')),
], ids=str)
def test_a_setting_that_changes_the_tiles_changes_the_key(changed):
    assert key_of(**changed) != key_of()


@pytest.mark.parametrize('changed', [dict(options={'detail': 'high'}), dict(max_shrink=1.11)],
                         ids=str)
def test_a_setting_that_leaves_this_images_tiles_alone_leaves_its_key(changed):
    assert key_of(**changed) == key_of()


def test_one_key_never_stands_for_two_stacks_of_tiles():
    """Every combination of settings, on an image that is cut in many ways."""
    photo = encoded(picture(75, 50), 'PNG', orientation=6)
    policies = [dict(kind='stock'), dict(kind='budget', budget=16),
                *[dict(fit=fit, max_shrink=shrink, thumbnail_from=least)
                  for fit in ('auto', 'pad', 'crop', 'stretch') for shrink in (1.0, 1.5)
                  for least in (2, 5)]]
    tiles = {}
    for policy, pixels, most in itertools.product(policies, ('fast', 'upstream'), (1, 4, 12)):
        key, cut = key_and_tiles(photo, pixels=pixels, max_tiles=most, **policy)
        assert np.array_equal(tiles.setdefault(key, cut), cut)
    assert len(tiles) > 20


@pytest.fixture(scope='module')
def model():
    torch.manual_seed(0)
    return InternVLChatModel(shape_config('tiny', vocab_size=320)).eval()


def test_a_model_is_known_by_its_weights_wherever_they_lie(model):
    one = model_key(model, model.config, 'eager', torch.float32)
    other = copy.deepcopy(model)
    other.vision_model.embeddings.patch_embedding.weight.data = \
        other.vision_model.embeddings.patch_embedding.weight.data.contiguous(
            memory_format=torch.channels_last)
    assert model_key(other, other.config, 'eager', torch.float32) == one


def _change_last_bit(model, name):
    weight = model.state_dict()[name]
    weight.view(torch.int32).view(-1)[-1].bitwise_xor_(1)


@pytest.mark.parametrize('name', ['vision_model.embeddings.class_embedding',
                                  'vision_model.encoder.layers.1.ls2', 'mlp1.3.bias'])
def test_one_bit_of_one_weight_makes_another_model(model, name):
    other = copy.deepcopy(model)
    _change_last_bit(other, name)
    assert model_key(other, other.config, 'eager', torch.float32) \
        != model_key(model, model.config, 'eager', torch.float32)


def test_the_language_model_does_not_matter(model):
    other = copy.deepcopy(model)
    other.language_model = None
    assert model_key(other, other.config, 'eager', torch.float32) \
        == model_key(model, model.config, 'eager', torch.float32)


def test_configuration_backend_and_dtype_make_another_model(model):
    changed = {}
    for name, value in (('ps_version', 'v1'), ('select_layer', -2), ('downsample_ratio', 0.25)):
        changed[name] = copy.deepcopy(model.config)
        setattr(changed[name], name, value)
    changed['eps'] = copy.deepcopy(model.config)
    changed['eps'].vision_config.layer_norm_eps = 1e-5
    keys = [model_key(model, config, 'eager', torch.float32)
            for config in (model.config, *changed.values())]
    keys += [model_key(model, model.config, 'graphs', torch.float32),
             model_key(model, model.config, 'eager', torch.float16),
             model_key(model, model.config, 'eager', torch.bfloat16)]
    half = copy.deepcopy(model).half()
    keys.append(model_key(half, model.config, 'eager', torch.float32))
    assert len(set(keys)) == len(keys)


def test_weights_of_half_precision_are_hashed_whole(model):
    half = copy.deepcopy(model).to(torch.bfloat16)
    before = model_key(half, half.config, 'eager', torch.bfloat16)
    half.mlp1[3].bias.data[-1] += 1
    assert model_key(half, half.config, 'eager', torch.bfloat16) != before


def test_a_model_without_weights_is_refused(model):
    with pytest.raises(ValueError, match='found a Linear without vision_model'):
        model_key(torch.nn.Linear(2, 2), model.config, 'eager', torch.float32)
    empty = copy.deepcopy(model).to('meta')
    with pytest.raises(ValueError, match='on the meta device; expected a loaded model'):
        model_key(empty, model.config, 'eager', torch.float32)
