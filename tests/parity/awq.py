"""Checkpoints with 4-bit weights as AutoAWQ and `lmdeploy lite auto_awq` write them."""
import json
import shutil
from pathlib import Path
from typing import Dict, Tuple

import torch
from safetensors.torch import load_file, save_file

GROUP = 128  # input channels that share a scale and a zero
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AWQ's order of eight values in an int32
UNQUANTISED = ('embed', 'lm_head', 'output.weight')


def pack(values: torch.Tensor) -> torch.Tensor:
    """[rows, columns] of 0..15 -> [rows, columns / 8] int32."""
    eights = values.long().unflatten(1, (-1, 8))[..., ORDER]
    words = (eights << (4 * torch.arange(8))).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def write_awq(folder: str, out: Path) -> Tuple[str, str]:
    """Round the language model's weights of a checkpoint to 4 bits.

    Returns:
        folder of the AWQ checkpoint, and of one that holds the same values unpacked, in float32.
    """
    packed: Dict[str, torch.Tensor] = {}
    plain: Dict[str, torch.Tensor] = {}
    for name, weight in load_file(f'{folder}/model.safetensors').items():
        quantised = (name.startswith('language_model.') and weight.ndim == 2
                     and not any(part in name for part in UNQUANTISED))
        if quantised:
            tensors, weight = _quantise(weight)
            packed.update({name[:-len('weight')] + kind: t for kind, t in tensors.items()})
        else:
            packed[name] = weight
        plain[name] = weight
    settings = dict(quant_method='awq', bits=4, group_size=GROUP, version='gemm', zero_point=True)
    return (_write(folder, out / 'awq', packed, quantization_config=settings),
            _write(folder, out / 'plain', plain))


def _quantise(weight: torch.Tensor) -> Tuple[Dict[str, torch.Tensor], torch.Tensor]:
    """A layer's tensors, and its weight as they say it; weight: [out, in] float32."""
    groups = weight.T.unflatten(0, (-1, GROUP))  # [groups, GROUP, out]
    low, high = groups.amin(1), groups.amax(1)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales).round().clamp(0, 15)
    values = ((groups / scales[:, None]).round() + zeros[:, None]).clamp(0, 15)
    plain = ((values - zeros[:, None]) * scales[:, None].float()).flatten(0, 1).T.contiguous()
    return dict(qweight=pack(values.flatten(0, 1)), qzeros=pack(zeros), scales=scales), plain


def _write(source: str, folder: Path, tensors: Dict[str, torch.Tensor], **llm_fields) -> str:
    shutil.copytree(source, folder)
    save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
    config = json.loads((folder / 'config.json').read_text())
    config['llm_config'].update(llm_fields)
    (folder / 'config.json').write_text(json.dumps(config))
    return str(folder)
