"""4-bit linear layers: equal to the dequantised weight, and to upstream's default layer."""
import pytest
import torch
from lmdeploy.pytorch.backends.default.awq_modules import DefaultLinearW4A16Impl

from lmdeploy_ext.pytorch.linear import CpuLinearW4A16Builder
from tests.parity.awq import pack

INPUT, OUTPUT, GROUP = 64, 24, 32


@pytest.fixture
def layer():
    """Weights of a layer, packed, and the plain weight [in, out] float32."""
    torch.manual_seed(0)
    weight = torch.randint(0, 16, (INPUT, OUTPUT))
    zeros = torch.randint(0, 16, (INPUT // GROUP, OUTPUT))
    scales = torch.rand(INPUT // GROUP, OUTPUT, dtype=torch.float16) / 8
    wide_zeros, wide_scales = (x.repeat_interleave(GROUP, 0) for x in (zeros, scales.float()))
    return (pack(weight), scales, pack(zeros)), (weight - wide_zeros) * wide_scales


@pytest.mark.parametrize('with_bias', [False, True])
def test_equals_the_dequantised_weight_in_float32(layer, with_bias):
    packed, plain = layer
    x = torch.randn(2, 5, INPUT)
    bias = torch.randn(OUTPUT, dtype=torch.float16) if with_bias else None
    out = CpuLinearW4A16Builder.build(INPUT, OUTPUT, 4, GROUP).forward(x, *packed, bias)
    expected = x @ plain + (bias.float() if with_bias else 0)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_equals_upstreams_default_layer_but_for_its_rounding(layer):
    packed, _ = layer
    x = torch.randn(3, INPUT)
    ours = CpuLinearW4A16Builder.build(INPUT, OUTPUT, 4, GROUP).forward(x, *packed)
    theirs = DefaultLinearW4A16Impl(INPUT, OUTPUT, 4, GROUP).forward(x, *packed)
    # fp16 has 11 bits: sums of 64 products of size 1 are off by some 1e-2
    torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=1e-2)
