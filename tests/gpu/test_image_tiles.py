"""Tiles to the GPU: from pinned memory, normalised there, the same features as on the CPU."""
import copy

import numpy as np
import pytest
import torch

from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.shapes import shape_config
from lmdeploy_ext.vl.internvl import encode, loader_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]


class Vision:
    """What `encode` uses of upstream's `InternVLVisionModel`."""

    def __init__(self, model):
        self.model, self.config = model, model.config
        self._forward_func = self._forward_v1_5

    def _forward_v1_5(self):
        raise AssertionError('upstream\'s way is not taken')


@pytest.fixture(scope='module')
def models():
    """The same weights on the CPU in float32 and on the GPU in float16."""
    torch.manual_seed(0)
    model = InternVLChatModel(shape_config('tiny', vocab_size=320)).eval()
    return Vision(model), Vision(copy.deepcopy(model).half().cuda())


def images(count, seed):
    """Images of one to five tiles, so that buffers of several sizes come and go."""
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 256, (*chance.integers(50, 300, 2), 3), dtype=np.uint8)
            for _ in range(count)]


@torch.no_grad()
def test_features_are_those_of_the_cpu_also_while_buffers_are_used_again(models):
    """fp16 against float32: cosine 0.999 is what the tiny model's rounding leaves at the least.
    Memory that is given back too early would hold another image's pixels by the time of the copy.
    """
    on_cpu, on_gpu = models
    for seed in range(20):
        batch = images(4, seed)
        prepared = loader_of(on_gpu).prepare(batch, [{}] * 4)
        assert torch.from_numpy(prepared[0].tiles).is_pinned()
        for found, expected in zip(encode(on_gpu, prepared), encode(on_cpu, batch)):
            assert found.is_cuda and found.dtype == torch.float16
            cosine = torch.cosine_similarity(found.float().cpu(), expected, dim=-1)
            assert cosine.min() > 0.999
