"""Sizes of InternVL2 models: the released ones, and small ones for tests and the demo.

The released sizes are facts from the config.json files of OpenGVLab/InternVL2-1B, -2B and -8B.
"""
import difflib
from copy import deepcopy
from typing import Optional

from .configuration import InternVLChatConfig

VIT_300M = dict(architectures=['InternVisionModel'],
                hidden_size=1024,
                num_attention_heads=16,
                intermediate_size=4096,
                num_hidden_layers=24,
                image_size=448,
                patch_size=14,
                norm_type='layer_norm',
                qkv_bias=True,
                qk_normalization=False,
                drop_path_rate=0.1,
                initializer_factor=1.0)
VIT_TINY = dict(VIT_300M,
                hidden_size=64,
                num_attention_heads=4,
                intermediate_size=128,
                num_hidden_layers=2,
                image_size=112,
                drop_path_rate=0.0)
VIT_DEMO = dict(VIT_300M,
                hidden_size=192,
                num_attention_heads=6,
                intermediate_size=768,
                num_hidden_layers=4,
                patch_size=28,
                drop_path_rate=0.0)

QWEN2 = dict(architectures=['Qwen2ForCausalLM'],
             hidden_act='silu',
             max_position_embeddings=32768,
             rms_norm_eps=1e-6,
             rope_theta=1000000.0,
             sliding_window=32768,
             use_sliding_window=False,
             tie_word_embeddings=False)
INTERNLM2 = dict(architectures=['InternLM2ForCausalLM'],
                 bias=False,
                 bos_token_id=1,
                 eos_token_id=2,
                 pad_token_id=2,
                 hidden_act='silu',
                 max_position_embeddings=32768,
                 rms_norm_eps=1e-5,
                 rope_scaling={
                     'type': 'dynamic',
                     'factor': 2.0
                 },
                 rope_theta=1000000,
                 tie_word_embeddings=False)
LLAMA = dict(architectures=['LlamaForCausalLM'],
             hidden_act='silu',
             max_position_embeddings=32768,
             rms_norm_eps=1e-5,
             rope_theta=10000.0,
             tie_word_embeddings=False)
# head_dim 128: the only one that both of LMDeploy's engines run.
LLM_TINY = dict(hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1)

# Without a vocab_size the model takes its tokenizer's.
SHAPES = {
    'tiny': (VIT_TINY, dict(QWEN2, **LLM_TINY)),
    'tiny-internlm2': (VIT_TINY, dict(INTERNLM2, **LLM_TINY)),
    'tiny-llama': (VIT_TINY, dict(LLAMA, **LLM_TINY)),
    'demo': (VIT_DEMO, dict(QWEN2, **dict(LLM_TINY, num_hidden_layers=3, intermediate_size=384))),
    '1b': (VIT_300M,
           dict(QWEN2,
                bos_token_id=151643,
                eos_token_id=151645,
                hidden_size=896,
                intermediate_size=4864,
                num_hidden_layers=24,
                num_attention_heads=14,
                num_key_value_heads=2,
                vocab_size=151655)),
    '2b': (VIT_300M,
           dict(INTERNLM2,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=24,
                num_attention_heads=16,
                num_key_value_heads=8,
                vocab_size=92553)),
    '8b': (VIT_300M,
           dict(INTERNLM2,
                hidden_size=4096,
                intermediate_size=14336,
                num_hidden_layers=32,
                num_attention_heads=32,
                num_key_value_heads=8,
                vocab_size=92553)),
}


def shape_config(shape: str, vocab_size: Optional[int] = None) -> InternVLChatConfig:
    """Configuration of the named shape.

    Args:
        shape: a key of `SHAPES`.
        vocab_size: of the language model, for a shape that has none of its own.

    Raises:
        ValueError: unknown shape, or a `vocab_size` that is missing or contradicts the shape's.
    """
    if shape not in SHAPES:
        near = difflib.get_close_matches(shape, SHAPES, n=1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise ValueError(f"no shape {shape!r}; there are {', '.join(SHAPES)}{hint}")
    vision, llm = deepcopy(SHAPES[shape])
    own = llm.setdefault('vocab_size', vocab_size)
    if own is None or vocab_size not in (None, own):
        raise ValueError(f'shape {shape!r} has a vocabulary of {own} and the tokenizer one of '
                         f'{vocab_size}; they must be equal')
    return InternVLChatConfig(architectures=['InternVLChatModel'],
                              vision_config=vision,
                              llm_config=llm,
                              tie_word_embeddings=False,
                              template='Hermes-2' if shape == '1b' else 'internlm2-chat',
                              force_image_size=vision['image_size'],
                              dynamic_image_size=True,
                              use_thumbnail=True,
                              ps_version='v2',
                              min_dynamic_patch=1,
                              max_dynamic_patch=12)
