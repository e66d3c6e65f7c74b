"""What the CPU backend cannot do, refused by name before anything is loaded."""
from typing import Any, Iterator

_MOE = 'mixture of experts (MoE)'
NEEDS_GPU = {
    'DbrxForCausalLM': _MOE,
    'DeepseekForCausalLM': _MOE,
    'DeepseekV2ForCausalLM': _MOE,
    'MixtralForCausalLM': _MOE,
    'MllamaForConditionalGeneration': 'cross attention',
    'PhiMoEForCausalLM': _MOE,
    'QWenLMHeadModel': 'first Qwen (LMDeploy asks the CUDA driver for its dtype)',
    'Qwen2MoeForCausalLM': _MOE,
}
VISION_ARCHITECTURE = 'InternVLChatModel'
_PARTS = ('llm_config', 'language_config', 'text_config')  # of composed configurations


class UnsupportedOnCpu(ValueError):
    """A setting or a model needs a GPU; the message names it."""


def refuse_unsupported_settings(config: Any):
    """Check an engine configuration.

    Args:
        config: a `PytorchEngineConfig` of any supported release.

    Raises:
        UnsupportedOnCpu: tensor parallelism, adapters or a quantised KV cache.
    """
    if config.tp > 1:
        raise UnsupportedOnCpu(f'tp={config.tp} needs GPUs: the CPU backend runs in one process; '
                               'set tp=1')
    if config.adapters:
        raise UnsupportedOnCpu(f'adapters={sorted(config.adapters)} need a GPU: the CPU backend '
                               'has no LoRA; merge them into the model')
    quant_policy = getattr(config, 'quant_policy', 0)  # since 0.6.2
    if quant_policy:
        raise UnsupportedOnCpu(f'quant_policy={quant_policy} needs a GPU: the CPU backend does '
                               'not quantise the KV cache; set quant_policy=0')


def refuse_unsupported_model(hf_config: Any):
    """Check a model's configuration.

    Args:
        hf_config: the configuration of a text model, or a composed one.

    Raises:
        UnsupportedOnCpu: a mixture of experts, or a model with cross attention.
    """
    for architecture in _architectures(hf_config):
        if architecture in NEEDS_GPU:
            raise UnsupportedOnCpu(f'{architecture} needs a GPU: the CPU backend has no '
                                   f'{NEEDS_GPU[architecture]}; choose another model')


def refuse_unsupported_vision(architecture: str):
    """Check the architecture of a vision-language model.

    Raises:
        UnsupportedOnCpu: it is not InternVL.
    """
    if architecture != VISION_ARCHITECTURE:
        raise UnsupportedOnCpu(f'{architecture} needs a GPU: the CPU backend encodes images with '
                               f'InternVL only ({VISION_ARCHITECTURE})')


def _architectures(hf_config: Any) -> Iterator[str]:
    """Class names of a configuration and of its language part."""
    for config in [hf_config, *(getattr(hf_config, part, None) for part in _PARTS)]:
        yield from getattr(config, 'architectures', None) or ()
