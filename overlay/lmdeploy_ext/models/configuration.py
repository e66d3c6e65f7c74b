"""Configuration of InternVL2 chat models, as their published config.json files hold it.

Field names and defaults are those of OpenGVLab's checkpoints (InternVL2-1B to 8B), so that such a
config.json loads without the Python files that come with it.
"""
from typing import Optional, Union

from transformers import LlamaConfig, Qwen2Config
from transformers.configuration_utils import PretrainedConfig


class InternVisionConfig(PretrainedConfig):
    """InternViT. The defaults are near the 6B model: RMSNorm, normalised queries and keys.

    Args:
        norm_type: `rms_norm` (6B) or `layer_norm` (300M), of the norms around attention and MLP.
        qk_normalization: RMSNorm over the whole hidden size of queries and keys, whatever
            `norm_type` is.
        initializer_factor: initial value of the layer scales `ls1` and `ls2`.
        drop_path_rate: stochastic depth of the last layer in training; it grows linearly from 0.

    Raises:
        ValueError: unknown `norm_type`, heads that do not divide the hidden size, or patches
            that do not divide the tile.
    """
    model_type = 'intern_vit_6b'

    def __init__(self,
                 num_channels: int = 3,
                 patch_size: int = 14,
                 image_size: int = 224,
                 qkv_bias: bool = False,
                 hidden_size: int = 3200,
                 num_attention_heads: int = 25,
                 intermediate_size: int = 12800,
                 qk_normalization: bool = True,
                 num_hidden_layers: int = 48,
                 use_flash_attn: bool = True,
                 hidden_act: str = 'gelu',
                 norm_type: str = 'rms_norm',
                 layer_norm_eps: float = 1e-6,
                 dropout: float = 0.0,
                 drop_path_rate: float = 0.0,
                 attention_dropout: float = 0.0,
                 initializer_range: float = 0.02,
                 initializer_factor: float = 0.1,
                 **kwargs):
        super().__init__(**kwargs)
        if norm_type not in ('rms_norm', 'layer_norm'):
            raise ValueError(f'vision_config.norm_type is {norm_type!r}; '
                             "InternViT has 'rms_norm' and 'layer_norm'")
        if hidden_size % num_attention_heads:
            raise ValueError(f'vision_config.hidden_size {hidden_size} is not a multiple of '
                             f'num_attention_heads {num_attention_heads}; change one of them')
        if image_size % patch_size:
            raise ValueError(f'vision_config.image_size {image_size} is not a multiple of '
                             f'patch_size {patch_size}; change one of them')
        self.num_channels = num_channels
        self.patch_size = patch_size
        self.image_size = image_size
        self.qkv_bias = qkv_bias
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.qk_normalization = qk_normalization
        self.num_hidden_layers = num_hidden_layers
        self.use_flash_attn = use_flash_attn
        self.hidden_act = hidden_act
        self.norm_type = norm_type
        self.layer_norm_eps = layer_norm_eps
        self.dropout = dropout
        self.drop_path_rate = drop_path_rate
        self.attention_dropout = attention_dropout
        self.initializer_range = initializer_range
        self.initializer_factor = initializer_factor


class InternLM2Config(PretrainedConfig):
    """InternLM2 (https://arxiv.org/abs/2403.17297): Llama with one matrix for q, k and v.

    Args:
        num_key_value_heads: None means as many as `num_attention_heads`.
        bias: of the attention projections.
        rope_scaling: None, or `{'type': 'linear' | 'dynamic', 'factor': float of at least 1}`.

    Raises:
        ValueError: heads that do not divide, or another `rope_scaling`.
    """
    model_type = 'internlm2'
    keys_to_ignore_at_inference = ['past_key_values']

    def __init__(self,
                 vocab_size: int = 103168,
                 hidden_size: int = 4096,
                 intermediate_size: int = 11008,
                 num_hidden_layers: int = 32,
                 num_attention_heads: int = 32,
                 num_key_value_heads: Optional[int] = None,
                 hidden_act: str = 'silu',
                 max_position_embeddings: int = 2048,
                 initializer_range: float = 0.02,
                 rms_norm_eps: float = 1e-6,
                 use_cache: bool = True,
                 pad_token_id: int = 0,
                 bos_token_id: int = 1,
                 eos_token_id: int = 2,
                 tie_word_embeddings: bool = False,
                 bias: bool = True,
                 rope_theta: float = 10000,
                 rope_scaling: Optional[dict] = None,
                 **kwargs):
        num_key_value_heads = num_key_value_heads or num_attention_heads
        if hidden_size % num_attention_heads or num_attention_heads % num_key_value_heads:
            raise ValueError(f'InternLM2 with hidden_size {hidden_size}, num_attention_heads '
                             f'{num_attention_heads}, num_key_value_heads {num_key_value_heads}: '
                             'each must be a multiple of the next')
        _check_rope_scaling(rope_scaling)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.hidden_act = hidden_act
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.rms_norm_eps = rms_norm_eps
        self.use_cache = use_cache
        self.bias = bias
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling
        super().__init__(pad_token_id=pad_token_id,
                         bos_token_id=bos_token_id,
                         eos_token_id=eos_token_id,
                         tie_word_embeddings=tie_word_embeddings,
                         **kwargs)


def _check_rope_scaling(rope_scaling: Optional[dict]):
    """Raise ValueError unless InternLM2 has this kind of rope scaling."""
    if rope_scaling is None:
        return
    kind, factor = rope_scaling.get('type'), rope_scaling.get('factor')
    if kind not in ('linear', 'dynamic') or not isinstance(factor, (int, float)) or factor < 1:
        raise ValueError(f'rope_scaling of InternLM2 is {rope_scaling!r}; expected type '
                         "'linear' or 'dynamic' and a factor of at least 1")


LLM_CONFIGS = {
    'InternLM2ForCausalLM': InternLM2Config,
    'LlamaForCausalLM': LlamaConfig,
    'Qwen2ForCausalLM': Qwen2Config,
}


class InternVLChatConfig(PretrainedConfig):
    """InternVL2: InternViT, pixel shuffle, a two-layer projector and a language model.

    Args:
        vision_config: fields of `InternVisionConfig`, or one.
        llm_config: fields of the language model's configuration, or one; `architectures[0]` says
            which it is.
        select_layer: the ViT layer whose output is used; -1 is the last.
        downsample_ratio: each axis of the patch grid shrinks by it, by pixel shuffle.
        template: name of the conversation template that the model was trained with.
        ps_version: `v2`, or `v1`, whose pixel shuffle leaves height and width exchanged.
        force_image_size: side of a tile in pixels, where it is not `vision_config.image_size`.
        dynamic_image_size, use_thumbnail, min_dynamic_patch, max_dynamic_patch, pad2square: how
            images are cut to tiles; read by the preprocessing, not by the model.

    Raises:
        ValueError: no language model, one that is not supported, another `ps_version`, or a
            `downsample_ratio` that does not divide the patch grid.
    """
    model_type = 'internvl_chat'
    is_composition = True

    def __init__(self,
                 vision_config: Union[dict, InternVisionConfig, None] = None,
                 llm_config: Union[dict, PretrainedConfig, None] = None,
                 use_backbone_lora: int = 0,
                 use_llm_lora: int = 0,
                 pad2square: bool = False,
                 select_layer: int = -1,
                 force_image_size: Optional[int] = None,
                 downsample_ratio: float = 0.5,
                 template: Optional[str] = None,
                 dynamic_image_size: bool = False,
                 use_thumbnail: bool = False,
                 ps_version: str = 'v1',
                 min_dynamic_patch: int = 1,
                 max_dynamic_patch: int = 6,
                 **kwargs):
        super().__init__(**kwargs)
        if ps_version not in ('v1', 'v2'):
            raise ValueError(f"ps_version is {ps_version!r}; InternVL has 'v1' and 'v2'")
        if not isinstance(vision_config, PretrainedConfig):
            vision_config = InternVisionConfig(**vision_config or {})
        if not isinstance(llm_config, PretrainedConfig):
            llm_config = _build_llm_config(llm_config)
        _check_downsample_ratio(downsample_ratio, force_image_size or vision_config.image_size,
                                vision_config.patch_size)
        self.vision_config = vision_config
        self.llm_config = llm_config
        self.use_backbone_lora = use_backbone_lora
        self.use_llm_lora = use_llm_lora
        self.pad2square = pad2square
        self.select_layer = select_layer
        self.force_image_size = force_image_size
        self.downsample_ratio = downsample_ratio
        self.template = template
        self.dynamic_image_size = dynamic_image_size
        self.use_thumbnail = use_thumbnail
        self.ps_version = ps_version
        self.min_dynamic_patch = min_dynamic_patch
        self.max_dynamic_patch = max_dynamic_patch

    @property
    def num_image_token(self) -> int:
        """Language model tokens of one tile."""
        image_size = self.force_image_size or self.vision_config.image_size
        return int((image_size // self.vision_config.patch_size)**2 * self.downsample_ratio**2)


def _check_downsample_ratio(ratio: float, image_size: int, patch_size: int):
    """Raise ValueError unless squares of 1 / ratio patches fill the grid of a tile."""
    grid = image_size // patch_size
    if not 0 < ratio <= 1 or grid % (1 / ratio):
        raise ValueError(f'downsample_ratio is {ratio} but a tile has {grid} x {grid} patches; '
                         f'1 / downsample_ratio must divide {grid}')


def _build_llm_config(fields: Optional[dict]) -> PretrainedConfig:
    """The configuration that `fields['architectures'][0]` names."""
    architectures = (fields or {}).get('architectures') or [None]
    if architectures[0] not in LLM_CONFIGS:
        raise ValueError(f'llm_config.architectures[0] is {architectures[0]!r}; '
                         f"supported without remote code: {', '.join(LLM_CONFIGS)}")
    # Published files ask for flash_attention_2; what runs is the process's choice, not theirs.
    fields = {name: value for name, value in fields.items() if name != 'attn_implementation'}
    return LLM_CONFIGS[architectures[0]](**fields)
