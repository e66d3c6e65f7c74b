"""A checkpoint of 4-bit weights (AWQ): the CPU engine's ids are those of the same weights in a
plain float32 reference."""
import pytest
from safetensors.torch import load_file

from tests.parity.awq import write_awq
from tests.parity.engine import ask, greedy
from tests.parity.reference import Reference
from tests.parity.test_text import MIXED, TOKENS, ids_of


@pytest.mark.parametrize('shape', ['tiny', 'tiny-internlm2', 'tiny-llama'])
def test_ids_are_those_of_the_dequantised_reference(checkpoint, tmp_path, shape):
    packed, plain = write_awq(checkpoint(shape), tmp_path)
    assert any(name.endswith('.qweight') for name in load_file(f'{packed}/model.safetensors'))
    reference = Reference(plain)
    expected = [reference.ids(prompt, TOKENS) for prompt in MIXED]
    assert ids_of(ask(packed, MIXED, greedy(TOKENS), block_size=16)) == expected
    # rounding to 4 bits changes answers: the test would see the original weights
    assert expected != [Reference(checkpoint(shape)).ids(prompt, TOKENS) for prompt in MIXED]
