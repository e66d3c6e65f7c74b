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
from .tiles import TILE, Cut, Place, cut, cut_tiles, patches

CELLS = 8  # rows and columns of features in a tile
POINTS = 4  # rows and columns of points that a cell's classes are counted at
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

    def __call__(self, groups: list[tuple[Chunk, Cut]], rng: np.random.Generator) -> Batch:
        """Cut the pictures of all groups to tiles.

        Args:
            groups: pictures of one size each, and how they are cut.
            rng: draws the second question of each picture.

        Raises:
            ValueError: the groups differ in their number of tiles.
        """
        counts = {how.tiles for _, how in groups}
        if len(counts) != 1:
            raise ValueError(f'a batch has pictures of {sorted(counts)} tiles; '
                             'all must make the same number')
        device = groups[0][0].pixels.device
        cuts = [
            patches(cut_tiles(chunk.pixels, how).flatten(0, 1), PATCH) for chunk, how in groups
        ]
        classes = [class_shares(chunk, how) for chunk, how in groups]
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


def mark_places(truth: Truth, how: Cut) -> list[tuple[int, int]]:
    """(row of features, class) of every mark, in its tile and in the thumbnail."""
    places = []
    for mark in truth.marks:
        hits = (mark.kind in BEDS, mark.kind == 'bunk', mark.kind not in BEDS)
        x, y = _cell(how.place, mark.u, mark.v)
        at = [(y // CELLS * how.columns + x // CELLS) * CELLS**2 + y % CELLS * CELLS + x % CELLS]
        if how.thumbnail is not None:
            x, y = _cell(how.thumbnail, mark.u, mark.v)
            at.append(how.columns * how.rows * CELLS**2 + y * CELLS + x)
        places += [(row, kind) for row in at for kind in range(MARK_CLASSES) if hits[kind]]
    return places


def _cell(place: Place, u: float, v: float) -> tuple[int, int]:
    """Column and row of the cell of a canvas that a point of the image lies in."""
    side = TILE // CELLS
    return (int((place.left + u * place.width) / side), int((place.top + v * place.height) / side))


def _marks(groups: list[tuple[Chunk, Cut]], tiles: int, device: torch.device) -> torch.Tensor:
    places, first = [], 0
    for chunk, how in groups:
        for truth in chunk.truths:
            places += [(first + row, kind) for row, kind in mark_places(truth, how)]
            first += tiles * CELLS**2
    at = to_device(np.array(places, np.int64).reshape(-1, 2), device)
    marks = torch.zeros(first, MARK_CLASSES, device=device)
    marks[at[:, 0], at[:, 1]] = 1
    return marks


def class_shares(chunk: Chunk, how: Cut) -> torch.Tensor:
    """Share of every class in the square of each row of features: float32 `[n * tiles * 64,
    classes]`. What no image covers counts as the room."""
    shares = cut(_cells(chunk.classes, how.place, how.columns, how.rows), how.rows, how.columns)
    if how.thumbnail is not None:
        thumbnail = _cells(chunk.classes, how.thumbnail, 1, 1)
        shares = torch.cat([shares, thumbnail.unsqueeze(1)], dim=1)
    return shares.flatten(3).transpose(2, 3).flatten(0, 2)


def _cells(classes: torch.Tensor, place: Place, columns: int, rows: int) -> torch.Tensor:
    """Shares of the classes in the cells of a canvas: `[n, h, w]` -> `[n, classes, rows * 8,
    columns * 8]`."""
    step = TILE // CELLS // POINTS
    wide, high = max(1, place.width // step), max(1, place.height // step)
    left, top = place.left // step, place.top // step
    points = F.interpolate(classes.unsqueeze(1).float(), (high, wide), mode='nearest-exact')
    canvas = points.new_zeros(len(classes), rows * CELLS * POINTS, columns * CELLS * POINTS)
    canvas[:, top:top + high, left:left + wide] = points[:, 0]
    kinds = torch.arange(len(CLASSES) + 1, device=classes.device).view(1, -1, 1, 1)
    return F.avg_pool2d((canvas.unsqueeze(1) == kinds).float(), POINTS)
