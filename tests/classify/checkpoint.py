"""A small real checkpoint that answers 是 or 否, by the image."""
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.models.tokenizer import build_tokenizer

HEAD = 'language_model.lm_head.weight'


def write_yes_no_checkpoint(folder: Path) -> Path:
    """Random weights, but for the head: the rows of 是 and 否 are opposite and large, so that for
    nearly all images one of the two is the most probable token."""
    tokenizer = build_tokenizer(['房间里有床吗？请只回答是或否。', 'Answer yes or no.'],
                                512,
                                single_tokens=('是', '否'))
    write_checkpoint(folder, 'tiny', dtype='float32', seed=5, tokenizer=tokenizer)
    weights = load_file(folder / 'model.safetensors')
    yes, no = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ('是', '否'))
    row = 120 * torch.randn(weights[HEAD].shape[1], generator=torch.Generator().manual_seed(3))
    row *= weights[HEAD].std()
    weights[HEAD][yes], weights[HEAD][no] = row, -row
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
    return folder
