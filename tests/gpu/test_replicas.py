"""Replicas with streams of their own: on one GPU, and on two where there are two."""
import pytest
import torch

from lmdeploy_ext.eval.bench.vit_model import vision_model
from lmdeploy_ext.vision.backend import run
from lmdeploy_ext.vision.eager import EagerBackend
from lmdeploy_ext.vision.graph_pool import BUCKETS, GraphBackend
from lmdeploy_ext.vision.replicas import ReplicatedBackend
from lmdeploy_ext.vision.vit_weights import load_vit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two CUDA devices')

# ‖found - expected‖ / ‖expected‖ in float16: a part of a batch is another batch size, whose
# kernels' sums differ in the last place (2**-11) in every layer.
DIFFERENCE = 5e-3
GIB = 1 << 30


def eager(vit):
    return EagerBackend(vit, 32)


def graphs(vit):
    return GraphBackend(vit, BUCKETS, 32, GIB, False)


def replicas(devices, kind, shape='tiny'):
    """A backend on the first device alone, and one of the same weights on all of them."""
    model = vision_model(shape, torch.device('cuda', 0), torch.float16)
    vits = [load_vit(model, torch.device('cuda', device), torch.float16) for device in devices]
    alone = EagerBackend(vits[0], 32 * len(devices))
    return alone, ReplicatedBackend([kind(vit) for vit in vits])


def some_tiles(side, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, side, side, 3), dtype=torch.uint8,
                         generator=generator).to('cuda:0')


def assert_near(found, expected):
    assert found.device == expected.device
    assert ((found.double() - expected.double()).norm() <= DIFFERENCE * expected.double().norm())


@pytest.mark.parametrize('devices', [(0, 0), (0, 0, 0), pytest.param((0, 1), marks=two_gpus),
                                     pytest.param((0, 1, 0), marks=two_gpus)])
@pytest.mark.parametrize('kind', [eager, graphs])
class TestFeatures:

    def test_are_those_of_one_backend_for_any_number_of_tiles(self, devices, kind):
        alone, backend = replicas(devices, kind)
        for count in (*range(1, 18), backend.max_tiles):
            tiles = some_tiles(alone.side, count, seed=count)
            assert_near(run(backend, tiles), run(alone, tiles))

    def test_are_in_order_on_the_callers_stream(self, devices, kind):
        """Nothing waits in between: tiles come into being right before a call, are overwritten
        right after it, and features are read at once."""
        alone, backend = replicas(devices, kind)
        batches = [some_tiles(alone.side, 3 + seed % 14, seed) for seed in range(40)]
        expected = [run(alone, tiles) for tiles in batches]
        stream, found = torch.cuda.Stream(0), []
        torch.cuda.synchronize(0)
        with torch.cuda.stream(stream):
            buffer = torch.empty_like(some_tiles(alone.side, backend.max_tiles))
            for tiles in batches:
                buffer[:len(tiles)].copy_(tiles)
                features = run(backend, buffer[:len(tiles)])
                buffer.zero_()
                found.append(features + 0)
                features.zero_()
        stream.synchronize()
        for ours, theirs in zip(found, expected):
            assert_near(ours, theirs)

    def test_go_to_several_tensors_of_another_dtype(self, devices, kind):
        alone, backend = replicas(devices, kind)
        tiles = some_tiles(alone.side, 11)
        out = [torch.empty((count, alone.tokens, alone.hidden), device='cuda:0')
               for count in (1, 4, 6)]
        backend.encode(tiles, out)
        assert_near(torch.cat(out), run(alone, tiles).float())

    def test_leave_the_current_device_and_streams_as_they_were(self, devices, kind):
        alone, backend = replicas(devices, kind)
        everywhere = range(torch.cuda.device_count())
        before = [torch.cuda.current_stream(device) for device in everywhere]
        run(backend, some_tiles(alone.side, 8))
        assert torch.cuda.current_device() == 0
        assert [torch.cuda.current_stream(device) for device in everywhere] == before


@two_gpus
def test_the_300m_tower_on_two_gpus_gives_one_gpus_features():
    alone, backend = replicas((0, 1), graphs, '1b')
    for count in (1, 2, 3, 13, 64):
        tiles = some_tiles(alone.side, count, seed=count)
        found, expected = run(backend, tiles), run(alone, tiles)
        assert_near(found, expected)
        cosine = torch.cosine_similarity(found.float(), expected.float(), dim=-1)
        assert cosine.min() >= 0.9999
