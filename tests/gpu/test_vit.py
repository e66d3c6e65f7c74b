"""InternViT on a GPU: the features of the float32 reference, and nothing that waits."""
import copy

import pytest
import torch

from lmdeploy_ext.eval.demo.check import MODEL
from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.shapes import VIT_300M
from lmdeploy_ext.vision.backend import run
from lmdeploy_ext.vision.eager import EagerBackend
from lmdeploy_ext.vision.graph_pool import BUCKETS, GraphBackend
from lmdeploy_ext.vision.upstream import UpstreamBackend
from lmdeploy_ext.vision.vit_weights import default_dtype, load_vit

from ..vision.vit_models import LIKE_6B, chat_model, errors, random_tiles, reference
from .graphs import AlwaysGraphs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device'),
]

# The least cosine and the greatest error; those of tests/vision on a CPU, and float32's order of
# sums is less alike between two kinds of processor.
TOLERANCES = {torch.float32: (0.99999, 1e-4), torch.float16: (0.9999, 0.01),
              torch.bfloat16: (0.999, 0.05)}
KINDS = {'300M': dict(VIT_300M, num_hidden_layers=4, image_size=112),
         # 128 values a head, as InternViT-6B has
         '6B': dict(LIKE_6B, hidden_size=640, num_attention_heads=5, intermediate_size=2560,
                    num_hidden_layers=4)}


@pytest.fixture(scope='module', params=[*KINDS, 'trained'])
def model(request):
    """Random weights of two shapes, and the demo model's."""
    if request.param == 'trained':
        return InternVLChatModel.from_pretrained(MODEL, torch_dtype=torch.float32).eval()
    return chat_model(KINDS[request.param])


@pytest.fixture(scope='module')
def tiles(model):
    """16 tiles, in host memory."""
    return random_tiles(16, model.config.vision_config.image_size)


@pytest.fixture(scope='module')
def expected(model, tiles):
    """Their features by the reference, on the CPU in float32."""
    return reference(model, tiles)


def backend(model, dtype, **options):
    return EagerBackend(load_vit(model, torch.device('cuda', 0), dtype), 16, **options)


def assert_near(found, expected):
    assert found.is_cuda
    cosine, error = errors(found, expected)
    least, most = TOLERANCES[found.dtype]
    assert cosine >= least and error < most


@pytest.mark.parametrize('dtype', TOLERANCES)
def test_features_are_the_references_for_any_number_of_tiles(model, tiles, expected, dtype):
    used, tiles = backend(model, dtype), tiles.cuda()
    for count in range(1, 17):
        assert_near(run(used, tiles[:count]), expected[:count])


@pytest.mark.parametrize('dtype', TOLERANCES)
def test_so_are_those_of_graphs_of_every_size_padded_or_not(model, tiles, expected, dtype):
    vit, tiles = load_vit(model, torch.device('cuda', 0), dtype), tiles.cuda()
    for bucket in BUCKETS:
        graphs = GraphBackend(vit, (bucket, ), bucket, 1 << 30, False,
                              runner=AlwaysGraphs(vit, bucket))
        for count in range(1, bucket + 1):
            assert_near(run(graphs, tiles[:count]), expected[:count])
        assert graphs.figures().replays == bucket


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_compiled(model, tiles, expected, dtype):
    counters = torch._dynamo.utils.counters
    counters.clear()
    used, tiles = backend(model, dtype, compiled=True), tiles.cuda()
    for count in (1, 3, 2, 16, 7, 1):
        assert_near(run(used, tiles[:count]), expected[:count])
    assert counters['stats']['unique_graphs'] == 2


def test_the_checkpoints_own_code_in_float16(model, tiles, expected):
    upstream = UpstreamBackend(copy.deepcopy(model).half().cuda(), 16)
    assert_near(run(upstream, tiles.cuda()), expected)


def test_a_tile_does_not_depend_on_its_batch(model, tiles):
    used, tiles = backend(model, torch.float16), tiles.cuda()
    together = run(used, tiles)
    for index, tile in enumerate(tiles):
        assert_near(run(used, tile[None]), together[index:index + 1])


def test_the_host_never_waits(model, tiles):
    used, tiles = backend(model, torch.float16), tiles[:3].cuda()
    out = [torch.empty(count, used.tokens, used.hidden, device='cuda') for count in (1, 2)]
    used.encode(tiles, out)
    torch.cuda.set_sync_debug_mode('error')
    try:
        used.encode(tiles, out)
    finally:
        torch.cuda.set_sync_debug_mode('default')


def test_it_can_be_captured_in_a_graph(model, tiles, expected):
    vit = load_vit(model, torch.device('cuda', 0), torch.float16)
    read, graph = torch.zeros_like(tiles[:4], device='cuda'), torch.cuda.CUDAGraph()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            vit(read)  # libraries allocate their workspaces outside of the capture
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, capture_error_mode='thread_local'):
            found = vit(read)
    read.copy_(tiles[:4])
    graph.replay()
    assert_near(found, expected[:4])


def test_weights_are_shared_with_a_model_on_the_same_device():
    model = chat_model().half().cuda()
    vit = load_vit(model, torch.device('cuda', 0), default_dtype(model.config, 'cuda'))
    shared = model.vision_model.encoder.layers[0].attn.qkv.weight
    assert vit.layers[0].qkv.weight.data_ptr() == shared.data_ptr()
