"""Train the demo model: python -m lmdeploy_ext.eval.demo.train --out FOLDER --minutes 8

Needs a GPU for the real thing; `--minutes 0.5 --first 100 --album-gb 0.3 --held-out 16 --jobs 1`
on a CPU shows only that the loop works. Pictures of the `train` split are drawn while it trains
and never written to disk.
"""
import argparse
import copy
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ...models.checkpoint import save_checkpoint
from ...models.internvl import InternVLChatModel
from ...models.shapes import shape_config
from ...models.tokenizer import build_tokenizer
from . import prompts
from .batch import Batcher
from .objective import Objective, fast_attention
from .optimizer import Optimizer, Rates
from .picture import VERSION
from .recipe import GROUP, Draw, Recipe, shares
from .replica import Replica, replayable
from .stream import Album, Chunk, PictureStream, merge, workers
from .tiles import stock_cut

VOCAB_SIZE = 512
HEADS = 'heads.safetensors'  # of the dense supervision; only to go on training


class Trainer:
    """Holds the weights and the pictures; `run` trains until the time is over."""

    def __init__(self, recipe: Recipe, out: Path, resume: Optional[Path] = None):
        self.recipe, self.out = recipe, out
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        torch.manual_seed(recipe.seed)
        self.rng, self.draw = np.random.default_rng(recipe.seed), Draw(recipe.split)
        self.tokenizer = build_tokenizer(prompts.training_lines(),
                                         VOCAB_SIZE,
                                         single_tokens=prompts.ANSWER_WORDS,
                                         pad_to=VOCAB_SIZE,
                                         add_bos=True)
        config = shape_config('demo', len(self.tokenizer))
        config.llm_config._attn_implementation = 'sdpa'
        self.master = Objective(InternVLChatModel(config), self.tokenizer).to(self.device)
        if resume:
            self._load(resume)
        self.averaged = copy.deepcopy(self.master).requires_grad_(False)
        dtype = torch.bfloat16  # also on CPUs: those of today have instructions for it
        self.batcher = Batcher(self.tokenizer, dtype)
        self.replica = self._replica(dtype)
        precision = dtype if self.device.type == 'cuda' else torch.float32  # small products
        self.optimizer = Optimizer(self.master, self.averaged,
                                   Rates(average=recipe.average), precision)
        self._update = None
        self._share(self.master)
        self.start, self.steps, self.pictures = time.monotonic(), 0, 0

    def _replica(self, dtype: torch.dtype) -> Replica:
        """Attention is fused in it; cuDNN's is off, for it plans anew for every length."""
        if self.device.type == 'cuda':
            torch.backends.cuda.enable_cudnn_sdp(False)
        objective = copy.deepcopy(self.master)
        fast_attention(objective.model)
        return Replica(objective.to(dtype))

    def _load(self, folder: Path) -> None:
        """Start from the weights of an earlier training's output folder."""
        self.master.model.load_state_dict(load_file(folder / 'model' / 'model.safetensors'))
        self.master.load_state_dict(load_file(folder / HEADS), strict=False)

    @torch.no_grad()
    def _share(self, source: Objective) -> None:
        """Give the weights of `source` to the replica."""
        self.replica.weights.copy_(torch.cat([weight.flatten() for weight in source.parameters()]))

    def _apply(self) -> None:
        """Update the weights from the replica's gradient, and give them to it."""
        self.optimizer.step(self.replica.grads)
        self._share(self.master)

    def progress(self) -> float:
        """Part of the time that is over."""
        return min(1.0, (time.monotonic() - self.start) / (60 * self.recipe.minutes))

    def step(self, album: Album) -> dict[str, torch.Tensor]:
        """One update on a fresh batch."""
        done = self.progress()
        rise = (self.steps + 1) / self.recipe.warmup
        self.optimizer.rate.fill_(self.recipe.rate * min(1.0, rise, 1.02 - done))
        cuts = self.draw.cuts(self.rng, self.draw.tiles(self.rng))
        groups = [(album.sample(self.rng, size, GROUP), how) for size, how in cuts]
        batch = self.batcher(groups, self.rng)
        losses = self.replica.gradient(batch)
        means = {name: losses[name].float().mean() for name in ('answer', 'mark', 'dense', 'hits')}
        if self._update is None:
            self._update = replayable(self._apply, self.device)
        self._update()
        self.steps += 1
        self.pictures += len(batch.last) // 2
        return means

    @torch.no_grad()
    def held_out(self, chunks: list[Chunk], max_num: int) -> dict[str, float]:
        """Accuracy of the averaged weights on the published question, for each size of picture."""
        self._share(self.averaged)
        hits: dict[str, list] = {}
        self.replica.load_weights()
        for chunk in chunks:
            height, width = chunk.pixels.shape[1:3]
            how = stock_cut(width, height, max_num)
            for i in range(0, len(chunk.truths), 32):
                batch = self.batcher([(chunk.part(slice(i, i + 32)), how)], self.rng)
                hits.setdefault(f'{max(width, height)}x{min(width, height)}',
                                []).append(self.replica.objective(batch)['hits'])
        self._share(self.master)
        parts = {size: torch.cat(found).float() for size, found in sorted(hits.items())}
        return {
            'all': float(torch.cat(list(parts.values())).mean()),
            **{
                size: float(found.mean())
                for size, found in parts.items()
            }
        }

    def run(self) -> None:
        """Train, log, and save the checkpoint."""
        recipe = self.recipe
        album = Album(int(recipe.album_gb * 2**30), shares(), self.device)
        with workers(recipe.jobs) as executor:
            with PictureStream('calibration', recipe.seed, recipe.jobs, self.device, executor,
                               recipe.held_out) as stream:
                held_out = merge(stream.all())
            with PictureStream('train', recipe.seed, recipe.jobs, self.device, executor) as stream:
                while album.seen < recipe.first or not album.complete():
                    self._collect(stream, album)
                    time.sleep(0.05)
                self._loop(stream, album, held_out)
        self._look(held_out)
        self.save()

    def _collect(self, stream: PictureStream, album: Album) -> None:
        for chunk in stream.ready():
            album.add(chunk)

    def _loop(self, stream: PictureStream, album: Album, held_out: list[Chunk]) -> None:
        recent: list[dict] = []
        next_look = 0.15
        while self.progress() < 1:
            self._collect(stream, album)
            recent.append(self.step(album))
            if self.steps % 200 == 0 or self.steps == 20:
                means = {
                    name: float(torch.stack([r[name] for r in recent]).mean())
                    for name in recent[0]
                }
                self.log(drawn=album.seen, **means)
                recent.clear()
            if self.progress() > next_look:
                next_look = self.progress() + 0.15
                self._look(held_out)
                self.save()

    def _look(self, held_out: list[Chunk]) -> None:
        self.log(held_out_tiles_12=self.held_out(held_out, 12),
                 held_out_tiles_1=self.held_out(held_out, 1))

    def log(self, **values) -> None:
        """Append a line to the log."""
        line = {
            'step': self.steps,
            'seconds': round(time.monotonic() - self.start, 1),
            'pictures': self.pictures
        }
        line.update({name: _rounded(value) for name, value in values.items()})
        with open(self.out / 'train_log.jsonl', 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')

    def save(self) -> None:
        """Export the averaged weights in fp16."""
        save_checkpoint(self.averaged.model,
                        self.out / 'model',
                        'float16',
                        self.tokenizer,
                        overwrite=True)
        heads = {
            name: tensor
            for name, tensor in self.averaged.state_dict().items() if not name.startswith('model.')
        }
        save_file({name: tensor.contiguous() for name, tensor in heads.items()}, self.out / HEADS)


def _rounded(value):
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def main(argv=None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.train',
                                     description=__doc__)
    parser.add_argument('--out',
                        type=Path,
                        required=True,
                        help='folder for model/ and train_log.jsonl')
    parser.add_argument('--resume',
                        type=Path,
                        help='output folder of a training whose weights to start from')
    for name, value in asdict(Recipe()).items():
        parser.add_argument(f'--{name.replace("_", "-")}', type=type(value), default=value)
    arguments = vars(parser.parse_args(argv))
    out, resume = arguments.pop('out'), arguments.pop('resume')
    out.mkdir(parents=True, exist_ok=True)
    if (out / 'train_log.jsonl').exists():
        parser.error(f'{out} holds a training already; give another --out')
    trainer = Trainer(Recipe(**arguments), out, resume)
    gpu = torch.cuda.get_device_name() if trainer.device.type == 'cuda' else None
    trainer.log(recipe=arguments,
                rates=asdict(trainer.optimizer.rates),
                resumed=resume is not None,
                set_version=VERSION,
                torch=torch.__version__,
                cores=os.cpu_count(),
                gpu=gpu)
    trainer.run()


if __name__ == '__main__':
    main()
