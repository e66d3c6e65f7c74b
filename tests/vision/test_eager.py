"""Backends that run InternViT, and the checkpoint's own code: their contract."""
import pytest
import torch
from torch import nn

from lmdeploy_ext.vision.backend import run
from lmdeploy_ext.vision.eager import EagerBackend
from lmdeploy_ext.vision.linear import Linear, PackedLinear, pack
from lmdeploy_ext.vision.upstream import UpstreamBackend
from lmdeploy_ext.vision.vit_weights import load_vit

from .vit_models import CPU, chat_model, errors, random_tiles, reference


def eager(model, max_tiles=8, **options):
    return EagerBackend(load_vit(model, CPU, torch.float32), max_tiles, **options)


@pytest.fixture(scope='module')
def model():
    return chat_model()


@pytest.fixture(scope='module', params=[eager, UpstreamBackend])
def backend(request, model):
    return request.param(model, max_tiles=8)


def test_what_a_backend_says_of_itself(backend):
    assert (backend.side, backend.tokens, backend.hidden, backend.max_tiles) == (112, 16, 32, 8)
    assert (backend.device, backend.dtype) == (CPU, torch.float32)


@pytest.mark.parametrize('count', [1, 4, 5, 8])
def test_features_of_any_number_of_tiles(backend, model, count):
    tiles = random_tiles(count)
    found = run(backend, tiles)
    assert found.dtype == backend.dtype
    assert errors(found, reference(model, tiles))[1] < 1e-5


def test_features_go_where_the_caller_wants_them(backend, model):
    """In order, in parts of any size, also into one that lies in pieces or is of another dtype."""
    tiles = random_tiles(7)
    expected = reference(model, tiles)
    out = [torch.full((2, 16, 32), torch.nan), torch.empty(0, 16, 32),
           torch.full((1, 16, 32), torch.nan, dtype=torch.float16),
           torch.full((4, 16, 64), torch.nan)[..., ::2]]
    assert backend.encode(tiles, out) is None
    for found, part in zip(out, expected.split([2, 0, 1, 4])):
        torch.testing.assert_close(found.float(), part, atol=5e-3, rtol=1e-3)


def test_a_result_outlives_the_next_call(backend):
    first = run(backend, random_tiles(2))
    kept = first.clone()
    run(backend, random_tiles(2, seed=1))
    assert torch.equal(first, kept)


def test_results_can_be_written_to_and_need_no_gradients(backend):
    found = run(backend, random_tiles(1))
    assert not found.requires_grad and not found.is_inference()
    found.add_(1)


def places(*counts, tokens=16, hidden=32, dtype=torch.float32):
    return [torch.empty(count, tokens, hidden, dtype=dtype) for count in counts]


@pytest.mark.parametrize('tiles, out, message', [
    (random_tiles(9), places(9), '9 tiles in one call; expected 1 to 8'),
    (random_tiles(1)[:0], [], '0 tiles in one call; expected 1 to 8'),
    (random_tiles(1).float(), places(1), r'torch\.float32 .*expected torch\.uint8'),
    (random_tiles(1, 56), places(1), r'\[1, 56, 56, 3\].*expected.*\[n, 112, 112, 3\]'),
    (random_tiles(1)[0], places(1), r'\[112, 112, 3\].*expected.*\[n, 112, 112, 3\]'),
    (random_tiles(1).permute(0, 3, 1, 2), places(1), r'\[1, 3, 112, 112\].*expected'),
    (random_tiles(1).to('meta'), places(1), r'on meta; expected .* on cpu'),
    (random_tiles(2), places(1), r'out is for \[1\] tiles, but 2'),
    (random_tiles(2), places(1, 2), r'out is for \[1, 2\] tiles, but 2'),
    (random_tiles(2), [], r'out is for \[\] tiles, but 2'),
    (random_tiles(1), places(1, tokens=15), r'\[1, 15, 32\]; expected.*\[tiles, 16, 32\]'),
    (random_tiles(1), places(1, hidden=31), r'\[1, 16, 31\]; expected.*\[tiles, 16, 32\]'),
    (random_tiles(1), places(1, dtype=torch.int32), r'torch\.int32.*expected a floating dtype'),
])
def test_calls_against_the_contract_are_refused(backend, tiles, out, message):
    with pytest.raises(ValueError, match=message):
        backend.encode(tiles, out)


def test_the_upstream_backend_is_in_the_models_dtype():
    model, tiles = chat_model(), random_tiles(2)
    expected = reference(model, tiles)
    found = run(UpstreamBackend(model.half(), 8), tiles)
    assert found.dtype == torch.float16
    assert errors(found, expected)[0] >= 0.99999


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_compiled_once_for_one_tile_and_once_for_more(model):
    """Also a CPU's packed weights; batches of new sizes compile nothing."""
    counters = torch._dynamo.utils.counters
    counters.clear()
    backend = eager(model, compiled=True)
    for count in (1, 3, 2, 8, 4, 1, 5):
        tiles = random_tiles(count, seed=count)
        assert errors(run(backend, tiles), reference(model, tiles))[1] < 1e-5
    assert counters['stats']['unique_graphs'] == 2


@pytest.mark.parametrize('activation', [None, 'gelu', 'silu', 'gelu_pytorch_tanh'])
@pytest.mark.parametrize('bias', [True, False])
@torch.no_grad()
def test_packed_weights_give_the_same_product(activation, bias):
    linear = Linear(40, 24, bias=bias, activation=activation)
    packed = PackedLinear(linear)
    x, state = torch.randn(3, 5, 40), torch.randn(3, 5, 24)
    torch.testing.assert_close(packed(x), linear(x))
    torch.testing.assert_close(packed(x[:, ::2]), linear(x[:, ::2]))
    expected = state + linear(x)
    assert packed(x, added_to=state) is state
    torch.testing.assert_close(state, expected)
    assert linear(x, added_to=state) is state


@torch.no_grad()
def test_without_onednn_products_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, 'is_available', lambda: False)
    model = nn.Sequential(Linear(4, 4))
    pack(model)
    assert type(model[0]) is Linear


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_only_float32_is_packed(dtype):
    model = nn.Sequential(Linear(4, 4)).to(dtype)
    pack(model)
    assert type(model[0]) is Linear
