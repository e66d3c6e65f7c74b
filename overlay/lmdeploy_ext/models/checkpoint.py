"""Write InternVL2 checkpoint folders: safetensors, configuration and tokenizer, no Python files.

LMDeploy's engines, transformers (after `lmdeploy_ext.models.register()`) and accelerate read them.
"""
import json
from pathlib import Path
from typing import Optional, Union

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase
from transformers.configuration_utils import PretrainedConfig

from .configuration import InternVLChatConfig
from .internvl import InternVLChatModel
from .random_weights import plan_shards, random_tensors, tensor_shapes
from .shapes import SHAPES, shape_config
from .tokenizer import build_tokenizer, save_tokenizer

SHARD_BYTES = 2 * 1024**3
DTYPES = ('float16', 'bfloat16', 'float32')
# For checkpoints of random weights: enough to learn a few merges from.
SAMPLE_LINES = ('Describe the image. Are there three or more beds, or a bunk bed? Yes or No',
                '描述这张图片。图中是否有三张或更多的床，或者上下铺？请回答是或否。')


def write_checkpoint(folder: Union[str, Path],
                     shape: str,
                     *,
                     dtype: str = 'float16',
                     seed: int = 0,
                     device: str = 'cpu',
                     tokenizer: Optional[PreTrainedTokenizerBase] = None,
                     overwrite: bool = False) -> InternVLChatConfig:
    """Write a checkpoint of random weights, one file of at most 2 GiB at a time.

    Args:
        folder: made if it is not there.
        shape: a key of `shapes.SHAPES`, such as `tiny` or `8b`.
        dtype: `float16`, `bfloat16` or `float32`.
        seed: of the weights; their values also depend on the kind of `device`.
        device: where the values are drawn; a GPU is much faster.
        tokenizer: as wide as the language model's head. Default: a small one, filled up.
        overwrite: replace weights that are in the folder already.

    Returns:
        the configuration that was written.

    Raises:
        ValueError: unknown shape or dtype, no such device, or a tokenizer of another size than
            the shape's.
        FileExistsError: the folder holds weights, and `overwrite` is False.
    """
    torch_dtype = _dtype(dtype)
    _check_device(device)
    if tokenizer is None:
        vocab_size = SHAPES[shape][1].get('vocab_size') if shape in SHAPES else None
        tokenizer = build_tokenizer(SAMPLE_LINES, 320, pad_to=vocab_size)
    config = shape_config(shape, len(tokenizer))
    folder = _prepare(folder, overwrite)
    shapes = tensor_shapes(config)
    shards = plan_shards(shapes, torch_dtype.itemsize, SHARD_BYTES)
    tensors = random_tensors(config, shapes, seed, torch.device(device), torch_dtype)
    names = _shard_names(len(shards))
    for file, shard in zip(names, shards):
        save_file({name: next(tensors)[1] for name in shard}, folder / file, {'format': 'pt'})
    if len(shards) > 1:
        total = sum(shape.numel() for shape in shapes.values()) * torch_dtype.itemsize
        weight_map = {name: file for file, shard in zip(names, shards) for name in shard}
        _write_json(folder / 'model.safetensors.index.json', {
            'metadata': {
                'total_size': total
            },
            'weight_map': weight_map
        })
    _write_rest(folder, config, dtype, tokenizer)
    return config


def save_checkpoint(model: InternVLChatModel,
                    folder: Union[str, Path],
                    dtype: str,
                    tokenizer: PreTrainedTokenizerBase,
                    overwrite: bool = False):
    """Write a trained model as one weights file, load it again and compare.

    Args:
        model: on any device, of any dtype; it is not changed.
        folder, dtype, tokenizer, overwrite: as in `write_checkpoint`.

    Raises:
        ValueError: unknown dtype, weights that are not finite in it, or a tokenizer that is not as
            wide as the language model's head.
        FileExistsError: the folder holds weights, and `overwrite` is False.
        RuntimeError: what was read back differs from what was written.
    """
    torch_dtype = _dtype(dtype)
    width = model.config.llm_config.vocab_size
    if len(tokenizer) != width:
        raise ValueError(f'the tokenizer has {len(tokenizer)} entries and the language model a '
                         f'vocabulary of {width}; they must be equal')
    # Copies: safetensors refuses tensors that share memory, as a tied head and embedding do.
    weights = {
        name: tensor.detach().to('cpu', torch_dtype, copy=True).contiguous()
        for name, tensor in model.state_dict().items()
    }
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f'{name} has values that are not finite in {dtype}; '
                             'save in a wider dtype, or look at the training')
    folder = _prepare(folder, overwrite)
    save_file(weights, folder / _shard_names(1)[0], {'format': 'pt'})
    _write_rest(folder, model.config, dtype, tokenizer)
    loaded = InternVLChatModel.from_pretrained(folder, torch_dtype=torch_dtype).state_dict()
    wrong = [name for name in weights if not torch.equal(weights[name], loaded[name])]
    if wrong or loaded.keys() != weights.keys():
        raise RuntimeError(f'{folder} does not load as it was saved (first difference: '
                           f'{(wrong or ["the names of the tensors"])[0]}); do not use it')


def config_fields(config: PretrainedConfig) -> dict:
    """What config.json holds: each public field of the class's own, or that differs from the base.

    LMDeploy reads config.json itself, so a field that equals the class's default must be there;
    transformers' own short form leaves it out. The transformers version is left out: LMDeploy
    refuses a checkpoint that a newer one has written.
    """
    base = PretrainedConfig().to_dict()
    fields = {
        name: value
        for name, value in config.to_dict().items()
        if name[0] != '_' and (name not in base or base[name] != value)
    }
    fields.pop('transformers_version', None)
    if hasattr(config, 'vocab_size'):  # TurboMind's default for it is not transformers'
        fields['tie_word_embeddings'] = config.tie_word_embeddings
    for name in ('vision_config', 'llm_config'):
        if isinstance(getattr(config, name, None), PretrainedConfig):
            fields[name] = config_fields(getattr(config, name))
    return fields


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; it must be one of {', '.join(DTYPES)}")
    return getattr(torch, name)


def _check_device(name: str):
    kind = name.partition(':')[0]
    if kind not in ('cpu', 'cuda'):
        raise ValueError(f'device is {name!r}; it must be cpu, cuda or cuda:N')
    if kind == 'cuda' and not torch.cuda.is_available():
        raise ValueError(f'device is {name!r} but this machine has no GPU; use cpu')


def _prepare(folder: Union[str, Path], overwrite: bool) -> Path:
    """Make the folder; remove the weights in it, or raise FileExistsError."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    old = sorted(folder.glob('model*.safetensors*'))
    if old and not overwrite:
        raise FileExistsError(f'{folder} holds weights already ({old[0].name}); give an empty '
                              'folder, or overwrite them on purpose')
    for file in old:
        file.unlink()
    return folder


def _shard_names(count: int) -> list:
    if count == 1:
        return ['model.safetensors']
    return [f'model-{i:05d}-of-{count:05d}.safetensors' for i in range(1, count + 1)]


def _write_rest(folder: Path, config: InternVLChatConfig, dtype: str,
                tokenizer: PreTrainedTokenizerBase):
    """config.json, generation_config.json and the tokenizer's files."""
    fields = config_fields(config)
    fields['torch_dtype'] = fields['llm_config']['torch_dtype'] = dtype
    fields['vision_config']['torch_dtype'] = dtype
    ids = {
        'bos_token_id': tokenizer.bos_token_id,
        'eos_token_id': tokenizer.eos_token_id,
        'pad_token_id': tokenizer.pad_token_id
    }
    fields['llm_config'].update(ids)
    _write_json(folder / 'config.json', fields)
    _write_json(folder / 'generation_config.json', ids)
    save_tokenizer(tokenizer, folder)


def _write_json(file: Path, content: dict):
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + '\n', encoding='utf-8')
