"""Train the demo model: python -m lmdeploy_ext.eval.demo.train --out FOLDER --minutes 8

Needs a GPU for the real thing (8 minutes on an H200 with 16 cores); `--minutes 0.2 --batch 8` runs on a CPU and shows
only that the loop works. Pictures of the `train` split are drawn while it trains and never written to disk.
"""
import argparse
import copy
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...models.checkpoint import save_checkpoint
from ...models.internvl import InternVLChatModel
from ...models.shapes import shape_config
from ...models.tokenizer import build_tokenizer
from . import prompts
from .objective import Objective, fast_attention
from .picture import SIZES, VERSION
from .stream import Album, Chunk, PictureStream, merge, workers

VOCAB_SIZE = 512
MAX_PATCHES = 12
HEADS = 'heads.safetensors'  # of the dense supervision; only to go on training


@dataclass(frozen=True)
class Recipe:
    """Attributes:
        minutes: wall-clock time; the learning rate follows it, not a number of steps.
        groups, group: a batch is `groups` times `group` pictures, those of a group of one size and tile limit.
        rate: highest learning rate of AdamW.
        warmup: part of the time in which it rises.
        average: decay of the weights' moving average, which is what is exported.
        album_gb: GiB of pixels kept for drawing batches from.
        held_out: pictures of the calibration split for the log.
        first: pictures to wait for before the first step.
    """
    minutes: float = 8.0
    groups: int = 12
    group: int = 8
    rate: float = 1.5e-3
    warmup: float = 0.03
    weight_decay: float = 0.05
    average: float = 0.998
    album_gb: float = 80.0
    held_out: int = 600
    first: int = 4000
    seed: int = 0
    jobs: int = 14


class Trainer:
    """Holds the model, its optimiser and the pictures; `run` trains until the time is over."""

    def __init__(self, recipe: Recipe, out: Path, resume: Optional[Path] = None):
        self.recipe, self.out = recipe, out
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        torch.manual_seed(recipe.seed)
        self.rng = np.random.default_rng(recipe.seed)
        self.tokenizer = build_tokenizer(prompts.training_lines(), VOCAB_SIZE, single_tokens=prompts.ANSWER_WORDS,
                                         pad_to=VOCAB_SIZE, add_bos=True)
        config = shape_config('demo', len(self.tokenizer))
        config.llm_config._attn_implementation = 'sdpa'
        model = InternVLChatModel(config)
        self.objective = Objective(model, self.tokenizer).to(self.device)
        if resume:
            self._load(resume)
        self.averaged = AveragedModel(self.objective, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))
        # fp32 weights are updated, a bf16 copy of them computes: autocast would cast each weight at each use
        self.working = copy.deepcopy(self.objective)
        if self.device.type == 'cuda':
            self.working.bfloat16()
            torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every length
        fast_attention(self.working.model)
        self.optimizer = torch.optim.AdamW(self._parameter_groups(), lr=recipe.rate, betas=(0.9, 0.98),
                                           fused=self.device.type == 'cuda')
        self.start, self.steps, self.pictures = time.monotonic(), 0, 0

    def _load(self, folder: Path) -> None:
        """Start from the weights of an earlier training's output folder."""
        self.objective.model.load_state_dict(load_file(folder / 'model' / 'model.safetensors'))
        heads = load_file(folder / HEADS)
        self.objective.load_state_dict(heads, strict=False)

    @torch.no_grad()
    def _refresh(self, source: Objective) -> None:
        """Copy weights to the computing copy."""
        for target, weight in zip(self.working.parameters(), source.parameters()):
            target.copy_(weight)

    def _parameter_groups(self) -> list[dict]:
        """Weight decay for matrices only."""
        matrices = [p for p in self.objective.parameters() if p.dim() >= 2]
        others = [p for p in self.objective.parameters() if p.dim() < 2]
        return [{'params': matrices, 'weight_decay': self.recipe.weight_decay}, {'params': others, 'weight_decay': 0.0}]

    def progress(self) -> float:
        """Part of the time that is over."""
        return min(1.0, (time.monotonic() - self.start) / (60 * self.recipe.minutes))

    def step(self, album: Album) -> dict[str, float]:
        """One update on a fresh batch."""
        done, recipe = self.progress(), self.recipe
        rate = recipe.rate * min(1.0, done / recipe.warmup + 1e-3, 0.5 * (1 + np.cos(np.pi * done)))
        for group in self.optimizer.param_groups:
            group['lr'] = rate
        groups = [(album.sample(self.rng, recipe.group), int(self.rng.integers(1, MAX_PATCHES + 1)))
                  for _ in range(recipe.groups)]
        losses = self.working(groups, self.rng)
        self.working.zero_grad(set_to_none=True)
        (losses['answer'] + losses['mark'] + losses['dense']).backward()
        for weight, worker in zip(self.objective.parameters(), self.working.parameters()):
            weight.grad = None if worker.grad is None else worker.grad.float()
        torch.nn.utils.clip_grad_norm_(self.objective.parameters(), 1.0)
        self.optimizer.step()
        self._refresh(self.objective)
        self.averaged.update_parameters(self.objective)
        self.steps += 1
        self.pictures += recipe.groups * recipe.group
        return {'answer': losses['answer'].detach(), 'mark': losses['mark'].detach(), 'dense': losses['dense'].detach(),
                'accuracy': losses['hits'].float().mean()}

    @torch.no_grad()
    def held_out(self, chunks: list[Chunk], max_num: int) -> dict[str, float]:
        """Accuracy of the averaged weights on the published question, for each size of picture."""
        hits: dict[str, list] = {}
        self._refresh(self.averaged.module)
        for chunk in chunks:
            for i in range(0, len(chunk.truths), 64):
                found = self.working([(chunk.part(slice(i, i + 64)), max_num)], np.random.default_rng(0))
                height, width = chunk.pixels.shape[1:3]
                hits.setdefault(f'{max(width, height)}x{min(width, height)}', []).append(found['hits'])
        self._refresh(self.objective)
        shares = {size: torch.cat(found).float() for size, found in sorted(hits.items())}
        return {'all': float(torch.cat(list(shares.values())).mean()),
                **{size: float(found.mean()) for size, found in shares.items()}}

    def run(self) -> None:
        """Train, log, and save the checkpoint."""
        recipe = self.recipe
        with workers(recipe.jobs) as executor:
            with PictureStream('calibration', recipe.seed, recipe.jobs, self.device, executor,
                               recipe.held_out) as stream:
                held_out = merge(stream.all())
            shares = {size: share for size, share in _shares()}
            album = Album(int(recipe.album_gb * 2**30), shares, self.device)
            with PictureStream('train', recipe.seed, recipe.jobs, self.device, executor) as stream:
                while album.seen < recipe.first:
                    self._collect(stream, album)
                    time.sleep(0.05)
                self.start = time.monotonic()
                self._loop(stream, album, held_out)
        self.log(held_out_tiles_12=self.held_out(held_out, 12), held_out_tiles_1=self.held_out(held_out, 1))
        self.save()

    def _collect(self, stream: PictureStream, album: Album) -> None:
        for chunk in stream.ready():
            album.add(chunk)

    def _loop(self, stream: PictureStream, album: Album, held_out: list[Chunk]) -> None:
        recent: list[dict] = []
        next_look = 0.1
        while self.progress() < 1:
            self._collect(stream, album)
            recent.append(self.step(album))
            if self.steps % 100 == 0 or self.steps == 10:
                means = {name: float(torch.stack([r[name] for r in recent]).mean()) for name in recent[0]}
                self.log(drawn=album.seen, **means)
                recent.clear()
            if self.progress() > next_look:
                next_look += 0.18
                self.log(held_out_tiles_12=self.held_out(held_out, 12), held_out_tiles_1=self.held_out(held_out, 1))

    def log(self, **values) -> None:
        """Append a line to the log."""
        line = {'step': self.steps, 'seconds': round(time.monotonic() - self.start, 1), 'pictures': self.pictures}
        line.update({name: _rounded(value) for name, value in values.items()})
        with open(self.out / 'train_log.jsonl', 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')

    def save(self) -> None:
        """Export the averaged weights in fp16."""
        averaged = self.averaged.module
        save_checkpoint(averaged.model, self.out / 'model', 'float16', self.tokenizer, overwrite=True)
        heads = {name: tensor for name, tensor in averaged.state_dict().items() if not name.startswith('model.')}
        save_file(heads, self.out / HEADS)


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def _shares():
    """(height, width) of pictures and their shares."""
    for (long, short), share, upright in SIZES:
        yield (short, long), share * (1 - upright)
        yield (long, short), share * upright


def main(argv=None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.train', description=__doc__)
    parser.add_argument('--out', type=Path, required=True, help='folder for model/ and train_log.jsonl')
    default = Recipe()
    for name, value in asdict(default).items():
        parser.add_argument(f'--{name.replace("_", "-")}', type=type(value), default=value)
    parser.add_argument('--resume', type=Path, help='output folder of a training whose weights to start from')
    arguments = vars(parser.parse_args(argv))
    out, resume = arguments.pop('out'), arguments.pop('resume')
    out.mkdir(parents=True, exist_ok=True)
    if (out / 'train_log.jsonl').exists():
        parser.error(f'{out} holds a training already; give another --out')
    trainer = Trainer(Recipe(**arguments), out, resume)
    trainer.log(recipe=arguments, resumed=resume is not None, set_version=VERSION, torch=torch.__version__, cores=os.cpu_count(),
                device=torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')
    trainer.run()


if __name__ == '__main__':
    main()
