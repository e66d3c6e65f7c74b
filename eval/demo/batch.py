"""Batches for training. All pictures of a batch make the same number of tiles, so that a batch has
one of few shapes and the whole update can be replayed as a CUDA graph."""
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from . import prompts, questions
from .beds import BEDS
from .scene import CLASSES
from .stream import Chunk, Truth, to_device
from .tiles import cut, patches, stock_grid, stock_tiles, tile_count

CELLS = 8  # rows and columns of features in a tile
PATCH = 28
MARK_CLASSES = 3  # head of a bed, middle of a bunk bed, of something else


@dataclass(frozen=True)
class Batch:
    """`n` pictures of `t` tiles each; two questions for each picture, the published one first.

    Attributes:
        patches: `[n * t, 256, 3 * 28 * 28]`, normalised.
        tail: int64 `[2 n, w]`, ids after the image: rest of the prompt, answer, padding.
        last: int64 `[2 n]`, where in `tail` the prompt ends.
        answer: int64 `[2 n]`, id of the right answer.
        marks: float32 `[n * t * 64, 3]`, 1 where a mark lies in the square of a row of features.
        classes: float32 `[n * t * 64, 9]`, share of each of `scene.CLASSES` in it.
    """
    patches: torch.Tensor
    tail: torch.Tensor
    last: torch.Tensor
    answer: torch.Tensor
    marks: torch.Tensor
    classes: torch.Tensor

    def copy_(self, other: 'Batch') -> None:
        """Take over the values of a batch of the same shape."""
        for mine, new in zip(tensors(self), tensors(other)):
            mine.copy_(new)


def tensors(batch: Batch) -> tuple[torch.Tensor, ...]:
    """The tensors of a batch."""
    return batch.patches, batch.tail, batch.last, batch.answer, batch.marks, batch.classes


class Batcher:
    """Turns pictures to batches for a model with `tokenizer`."""

    def __init__(self, tokenizer, dtype: torch.dtype):
        self.dtype = dtype
        asked = list(questions.answers(0, 0))
        self.prompts = {question: prompts.encode(tokenizer, question) for question in asked}
        self.others = asked[1:]
        self.words = {
            word: tokenizer.encode(word, add_special_tokens=False)[0]
            for word in prompts.ANSWER_WORDS
        }
        self.width = 1 + max(len(prompt.after) for prompt in self.prompts.values())

    def __call__(self, groups: list[tuple[Chunk, int]], rng: np.random.Generator) -> Batch:
        """Cut the pictures of all groups to tiles.

        Args:
            groups: pictures of one size each, with the `max_dynamic_patch` they are cut with.
            rng: draws the second question of each picture.

        Raises:
            ValueError: the groups differ in their number of tiles.
        """
        counts = {
            tile_count(chunk.pixels.shape[2], chunk.pixels.shape[1], max_num)
            for chunk, max_num in groups
        }
        if len(counts) != 1:
            raise ValueError(f'a batch has pictures of {sorted(counts)} tiles; '
                             'all must make the same number')
        device = groups[0][0].pixels.device
        cuts = [
            patches(stock_tiles(chunk.pixels, max_num).flatten(0, 1), PATCH)
            for chunk, max_num in groups
        ]
        classes = [class_shares(chunk, max_num) for chunk, max_num in groups]
        tail, last, answer = self._texts([truth for chunk, _ in groups for truth in chunk.truths],
                                         rng)
        return Batch(
            torch.cat(cuts).to(self.dtype), to_device(tail, device), to_device(last, device),
            to_device(answer, device), _marks(groups, counts.pop(), device), torch.cat(classes))

    def _texts(self, truths: list[Truth],
               rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Padding follows the text: causal attention never sees it.
        tail = np.zeros((2 * len(truths), self.width), np.int64)
        last, answer = np.zeros(2 * len(truths), np.int64), np.zeros(2 * len(truths), np.int64)
        for i, truth in enumerate(truths):
            right = questions.answers(truth.beds, truth.bunks)
            other = self.others[rng.integers(len(self.others))]
            for j, question in enumerate((questions.QUESTION, other)):
                ids, row = self.prompts[question].after, 2 * i + j
                last[row], answer[row] = len(ids) - 1, self.words[right[question]]
                tail[row, :len(ids)], tail[row, len(ids)] = ids, answer[row]
        return tail, last, answer


def mark_places(truth: Truth, width: int, height: int, max_num: int) -> list[tuple[int, int]]:
    """(row of features, class) of every mark, in its tile and in the thumbnail."""
    columns, rows = stock_grid(width, height, max_num)
    places = []
    for mark in truth.marks:
        hits = (mark.kind in BEDS, mark.kind == 'bunk', mark.kind not in BEDS)
        x, y = int(mark.u * columns * CELLS), int(mark.v * rows * CELLS)
        at = [(y // CELLS * columns + x // CELLS) * CELLS**2 + y % CELLS * CELLS + x % CELLS]
        if columns * rows > 1:
            at.append(columns * rows * CELLS**2 + int(mark.v * CELLS) * CELLS +
                      int(mark.u * CELLS))
        places += [(row, kind) for row in at for kind in range(MARK_CLASSES) if hits[kind]]
    return places


def _marks(groups: list[tuple[Chunk, int]], tiles: int, device: torch.device) -> torch.Tensor:
    places, first = [], 0
    for chunk, max_num in groups:
        height, width = chunk.pixels.shape[1:3]
        for truth in chunk.truths:
            places += [(first + row, kind)
                       for row, kind in mark_places(truth, width, height, max_num)]
            first += tiles * CELLS**2
    at = to_device(np.array(places, np.int64).reshape(-1, 2), device)
    marks = torch.zeros(first, MARK_CLASSES, device=device)
    marks[at[:, 0], at[:, 1]] = 1
    return marks


def class_shares(chunk: Chunk, max_num: int) -> torch.Tensor:
    """Share of every class in the square of each row of features: float32 `[n * tiles * 64,
    classes]`."""
    columns, rows = stock_grid(chunk.pixels.shape[2], chunk.pixels.shape[1], max_num)
    kinds = torch.arange(len(CLASSES) + 1, device=chunk.classes.device).view(1, -1, 1, 1)
    planes = (chunk.classes.unsqueeze(1) == kinds).float()
    shares = cut(F.adaptive_avg_pool2d(planes, (rows * CELLS, columns * CELLS)), rows, columns)
    if columns * rows > 1:
        shares = torch.cat([shares, F.adaptive_avg_pool2d(planes, CELLS).unsqueeze(1)], dim=1)
    return shares.flatten(3).transpose(2, 3).flatten(0, 2)
