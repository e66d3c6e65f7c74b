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

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ...models.checkpoint import save_checkpoint
from ...models.internvl import InternVLChatModel
from ...models.shapes import shape_config
from ...models.tokenizer import build_tokenizer
from . import prompts
from .objective import Objective, fast_attention
from .picture import SIZES, VERSION
from .stream import Album, Chunk, PictureStream, workers

VOCAB_SIZE = 512
MAX_PATCHES = 12


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
    groups: int = 16
    group: int = 8
    rate: float = 1.5e-3
    warmup: float = 0.03
    weight_decay: float = 0.05
    average: float = 0.998
    album_gb: float = 80.0
    held_out: int = 1000
    first: int = 4000
    seed: int = 0
    jobs: int = 15


class Trainer:
    """Holds the model, its optimiser and the pictures; `run` trains until the time is over."""

    def __init__(self, recipe: Recipe, out: Path):
        self.recipe, self.out = recipe, out
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        torch.manual_seed(recipe.seed)
        self.rng = np.random.default_rng(recipe.seed)
        self.tokenizer = build_tokenizer(prompts.training_lines(), VOCAB_SIZE, single_tokens=prompts.ANSWER_WORDS,
                                         pad_to=VOCAB_SIZE, add_bos=True)
        config = shape_config('demo', len(self.tokenizer))
        config.llm_config._attn_implementation = 'sdpa'
        model = InternVLChatModel(config).to(self.device)
        fast_attention(model)
        self.objective = Objective(model, self.tokenizer).to(self.device)
        self.averaged = AveragedModel(self.objective, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))
        fast_attention(self.averaged.module.model)
        self.optimizer = torch.optim.AdamW(self._parameter_groups(), lr=recipe.rate, betas=(0.9, 0.98),
                                           fused=self.device.type == 'cuda')
        self.start, self.steps, self.pictures = time.monotonic(), 0, 0

    def _parameter_groups(self) -> list[dict]:
        """Weight decay for matrices only."""
        matrices = [p for p in self.objective.parameters() if p.dim() >= 2]
        others = [p for p in self.objective.parameters() if p.dim() < 2]
        return [{'params': matrices, 'weight_decay': self.recipe.weight_decay}, {'params': others, 'weight_decay': 0.0}]

    def precision(self) -> torch.autocast:
        """bf16 on a GPU; CPUs are slower with it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == 'cuda')

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
        with self.precision():
            losses = self.objective(groups, self.rng)
        self.optimizer.zero_grad(set_to_none=True)
        (losses['answer'] + losses['mark']).backward()
        torch.nn.utils.clip_grad_norm_(self.objective.parameters(), 1.0)
        self.optimizer.step()
        self.averaged.update_parameters(self.objective)
        self.steps += 1
        self.pictures += recipe.groups * recipe.group
        return {'answer': losses['answer'].detach(), 'mark': losses['mark'].detach(),
                'accuracy': losses['hits'].float().mean()}

    @torch.no_grad()
    def held_out(self, chunks: list[Chunk], max_num: int) -> dict[str, float]:
        """Accuracy of the averaged weights on the published question, for each size of picture."""
        hits: dict[str, list] = {}
        for chunk in chunks:
            for i in range(0, len(chunk.truths), 32):
                part = Chunk(chunk.pixels[i:i + 32], chunk.truths[i:i + 32])
                with self.precision():
                    found = self.averaged.module([(part, max_num)], np.random.default_rng(0))['hits']
                height, width = chunk.pixels.shape[1:3]
                hits.setdefault(f'{max(width, height)}x{min(width, height)}', []).extend(found.tolist())
        every = [hit for found in hits.values() for hit in found]
        return {'all': float(np.mean(every)), **{size: float(np.mean(found)) for size, found in sorted(hits.items())}}

    def run(self) -> None:
        """Train, log, and save the checkpoint."""
        recipe = self.recipe
        with workers(recipe.jobs) as executor:
            with PictureStream('calibration', recipe.seed, recipe.jobs, self.device, executor,
                               recipe.held_out) as stream:
                held_out = list(stream.all())
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
                next_look += 0.15
                self.log(held_out_tiles_12=self.held_out(held_out, 12), held_out_tiles_1=self.held_out(held_out, 1))

    def log(self, **values) -> None:
        """Append a line to the log."""
        line = {'step': self.steps, 'seconds': round(time.monotonic() - self.start, 1), 'pictures': self.pictures}
        line.update({name: _rounded(value) for name, value in values.items()})
        with open(self.out / 'train_log.jsonl', 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')

    def save(self) -> None:
        """Export the averaged weights in fp16."""
        model = copy.deepcopy(self.averaged.module.model).float().cpu()
        save_checkpoint(model, self.out / 'model', 'float16', self.tokenizer, overwrite=True)


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
    arguments = vars(parser.parse_args(argv))
    out = arguments.pop('out')
    out.mkdir(parents=True, exist_ok=True)
    if (out / 'train_log.jsonl').exists():
        parser.error(f'{out} holds a training already; give another --out')
    trainer = Trainer(Recipe(**arguments), out)
    trainer.log(recipe=arguments, set_version=VERSION, torch=torch.__version__, cores=os.cpu_count(),
                device=torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu')
    trainer.run()


if __name__ == '__main__':
    main()
