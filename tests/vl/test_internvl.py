"""InternVL's vision model from tiles: the features, and what becomes of the tiles' memory."""
import numpy as np
import pytest
import torch
from lmdeploy import PytorchEngineConfig
from lmdeploy.vl.model.builder import load_vl_model
from lmdeploy.vl.model.internvl import InternVLVisionModel
from PIL import Image

from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.vl.internvl import MEAN, STD, encode, loader_of, normalise
from lmdeploy_ext.vl.prepared import PreparedImage
from tests.vl.image_files import encoded, picture

register()


@pytest.fixture(scope='module')
def vision(tmp_path_factory):
    """The vision model of a tiny checkpoint, on the CPU."""
    folder = tmp_path_factory.mktemp('vision') / 'model'
    write_checkpoint(folder, 'tiny', dtype='float32', seed=7)
    return load_vl_model(str(folder), backend_config=PytorchEngineConfig(device_type='cpu'))


def tiles_of(vision, count, seed=0):
    side = vision.config.vision_config.image_size
    shape = (count, side, side, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize('dtype, tolerance', [(torch.float32, 1e-6), (torch.float16, 1e-3)])
def test_pixels_are_normalised_as_upstream_does(dtype, tolerance):
    """float16 holds values up to 2.64 with steps of 2e-3: half of that is the rounding."""
    tiles = torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 16, 16, 3)
    expected = (tiles.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) \
        / torch.tensor(STD).view(3, 1, 1)
    found = normalise(tiles, dtype)
    assert found.dtype == dtype and found.is_contiguous()
    torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=0)


@torch.no_grad()
def test_each_image_gets_the_features_of_its_tiles(vision):
    one, two = tiles_of(vision, 1), tiles_of(vision, 3, seed=1)
    features = vision.forward([PreparedImage(one), PreparedImage(two)], [{}, {}])
    for found, tiles in zip(features, (one, two)):
        pixels = normalise(torch.from_numpy(tiles), torch.float32)
        torch.testing.assert_close(found, vision.model.extract_feature(pixels).flatten(0, 1),
                                   atol=2e-5, rtol=2e-5)


def test_images_that_come_unprepared_are_prepared_with_the_same_settings(vision):
    data = encoded(picture(300, 200), 'PNG')
    prepared = loader_of(vision).prepare([data], [{}])
    mixed = vision.forward([prepared[0], data], [{}, {'max_dynamic_patch': 1}])
    alone, = vision.forward([data], [{}])
    torch.testing.assert_close(mixed[0], alone, atol=2e-5, rtol=2e-5)
    assert len(mixed[1]) < len(mixed[0])


class Recorder:
    """Stands for an image's buffers."""

    def __init__(self):
        self.given = 0

    def give(self, tiles):
        self.given += 1


def test_tiles_are_given_back_once_they_are_copied(vision):
    buffers = Recorder()
    encode(vision, [PreparedImage(tiles_of(vision, 1), buffers) for _ in range(3)])
    assert buffers.given == 3


def test_after_a_failure_a_batch_keeps_its_tiles_and_a_single_image_does_not(vision, monkeypatch):
    """Then the batch is tried again, image by image."""
    def fail(pixels):
        raise RuntimeError('out of memory')

    monkeypatch.setattr(vision.model, 'extract_feature', fail)
    buffers = Recorder()
    images = [PreparedImage(tiles_of(vision, 1), buffers) for _ in range(2)]
    with pytest.raises(RuntimeError):
        encode(vision, images)
    assert buffers.given == 0
    for image in images:
        with pytest.raises(RuntimeError):
            encode(vision, [image])
    assert buffers.given == 2


def test_models_without_dynamic_tiles_are_left_to_upstream():
    vision = object.__new__(InternVLVisionModel)
    vision._forward_func = vision._forward
    assert loader_of(vision) is None
    with pytest.raises(AttributeError, match='image_processor'):
        vision.forward([Image.new('RGB', (4, 4))])
