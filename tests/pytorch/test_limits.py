"""What needs a GPU is refused by name, in one sentence."""
import pytest
from lmdeploy import PytorchEngineConfig
from transformers import LlamaConfig, MixtralConfig

from lmdeploy_ext.models.shapes import shape_config
from lmdeploy_ext.pytorch import limits
from lmdeploy_ext.pytorch.limits import UnsupportedOnCpu


@pytest.mark.parametrize('fields, message', [
    (dict(tp=2), 'tp=2 needs GPUs'),
    (dict(adapters=dict(b='/b', a='/a')), r"adapters=\['a', 'b'\] need a GPU"),
    (dict(quant_policy=8), 'quant_policy=8 needs a GPU'),
])
def test_settings(fields, message):
    config = PytorchEngineConfig(device_type='cpu')
    limits.refuse_unsupported_settings(config)
    for name, value in fields.items():  # as upstream converts a TurbomindEngineConfig
        setattr(config, name, value)
    with pytest.raises(UnsupportedOnCpu, match=message) as caught:
        limits.refuse_unsupported_settings(config)
    assert '\n' not in str(caught.value)


def test_dense_models_pass():
    limits.refuse_unsupported_model(LlamaConfig(architectures=['LlamaForCausalLM']))
    limits.refuse_unsupported_model(shape_config('tiny', 320))


def test_a_mixture_of_experts_alone_and_inside_another_model():
    experts = MixtralConfig(architectures=['MixtralForCausalLM'])
    for config in (experts, LlamaConfig(architectures=['LlavaForCausalLM'], text_config=experts)):
        with pytest.raises(UnsupportedOnCpu, match=r'MixtralForCausalLM needs a GPU.*MoE'):
            limits.refuse_unsupported_model(config)


def test_other_vision_models():
    limits.refuse_unsupported_vision('InternVLChatModel')
    with pytest.raises(UnsupportedOnCpu, match='LlavaLlamaForCausalLM needs a GPU'):
        limits.refuse_unsupported_vision('LlavaLlamaForCausalLM')
