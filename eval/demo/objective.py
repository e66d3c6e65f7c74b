"""What the demo model is trained on: answers to questions, and what is where in the tiles.

The second is dense supervision: linear heads on the rows that the ViT gives the language model say for each of them
what its square shows, and whether the head of a bed, the middle of a bunk bed or of something like a bed lies in it.
It makes a small ViT learn from few pictures; the heads are not part of the checkpoint.
"""
import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ...models.internvl import pixel_shuffle
from . import prompts, questions
from .beds import BEDS
from .scene import CLASSES
from .stream import Chunk, Truth, to_device
from .tiles import cut, patches, stock_grid, stock_tiles, tile_count

CELLS = 8  # rows and columns of features in a tile
MARK_CLASSES = 3  # head of a bed, bunk bed, neither
#: Weight of each class of `scene.CLASSES`, the room first: small things count more than their area.
CLASS_BALANCE = (0.3, 0.5, 1.0, 4.0, 1.0, 4.0, 1.0, 1.0, 1.0)
MARK_WEIGHT, POSITIVE_WEIGHT, CLASS_WEIGHT = 0.3, 4.0, 1.0


def mark_places(truth: Truth, width: int, height: int, max_num: int) -> list[tuple[int, int]]:
    """(row of features, class) of every mark, in its tile and in the thumbnail."""
    columns, rows = stock_grid(width, height, max_num)
    places = []
    for mark in truth.marks:
        hits = (mark.kind in BEDS, mark.kind == 'bunk', mark.kind not in BEDS)
        x, y = int(mark.u * columns * CELLS), int(mark.v * rows * CELLS)
        at = [(y // CELLS * columns + x // CELLS) * CELLS**2 + y % CELLS * CELLS + x % CELLS]
        if columns * rows > 1:
            at.append(columns * rows * CELLS**2 + int(mark.v * CELLS) * CELLS + int(mark.u * CELLS))
        places += [(row, kind) for row in at for kind in range(MARK_CLASSES) if hits[kind]]
    return places


def class_shares(classes: torch.Tensor, width: int, height: int, max_num: int) -> torch.Tensor:
    """Share of every class in the square of each row of features: float32 `[n * tiles * 64, classes]`."""
    columns, rows = stock_grid(width, height, max_num)
    planes = F.one_hot(classes.long(), len(CLASSES) + 1).permute(0, 3, 1, 2).float()
    shares = cut(F.adaptive_avg_pool2d(planes, (rows * CELLS, columns * CELLS)), rows, columns)
    if columns * rows > 1:
        shares = torch.cat([shares, F.adaptive_avg_pool2d(planes, CELLS).unsqueeze(1)], dim=1)
    return shares.flatten(3).transpose(2, 3).flatten(0, 2)


def fast_attention(model) -> None:
    """Let the ViT use torch's fused attention: the reference in `lmdeploy_ext.models` writes it out."""
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))

    for layer in model.vision_model.encoder.layers:
        layer.attn.forward = types.MethodType(forward, layer.attn)


def extract_feature(model, tiles: torch.Tensor) -> torch.Tensor:
    """`InternVLChatModel.extract_feature` with a matrix product for the patch embedding: cuDNN plans a convolution
    anew for every number of tiles. `[tiles, 3, 448, 448]` -> `[tiles, 64, hidden]`."""
    embeddings = model.vision_model.embeddings
    weight, bias = embeddings.patch_embedding.weight, embeddings.patch_embedding.bias
    tokens = F.linear(patches(tiles, weight.shape[-1]).to(weight.dtype), weight.flatten(1), bias)
    tokens = torch.cat([embeddings.class_embedding.expand(len(tokens), -1, -1), tokens], dim=1)
    encoded = model.vision_model.encoder(tokens + embeddings.position_embedding).last_hidden_state[:, 1:]
    grid = encoded.unflatten(1, (embeddings.grid, embeddings.grid))
    return model.mlp1(pixel_shuffle(grid, model.config.downsample_ratio, model.config.ps_version).flatten(1, 2))


class Objective(nn.Module):
    """The model with its training losses.

    Args:
        model: InternVLChatModel.
        tokenizer: its tokenizer.
    """

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model = model
        hidden = model.config.llm_config.hidden_size
        self.marks, self.classes = nn.Linear(hidden, MARK_CLASSES), nn.Linear(hidden, len(CLASSES) + 1)
        nn.init.constant_(self.marks.bias, -3.0)
        asked = list(questions.answers(0, 0))
        self.prompts = {question: prompts.encode(tokenizer, question) for question in asked}
        self.others = asked[1:]
        self.words = {word: tokenizer.encode(word, add_special_tokens=False)[0] for word in prompts.ANSWER_WORDS}
        self.end = tokenizer.convert_tokens_to_ids(prompts.END)

    def forward(self, groups: list[tuple[Chunk, int]], rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Losses of a batch.

        Args:
            groups: pictures of one size each, with the `max_dynamic_patch` they are cut with.
            rng: draws the second question of each picture; the first is always the published one.

        Returns:
            `answer`, `mark` and `dense` (losses to add up), `hits` (bool, for each picture: published question answered right).
        """
        groups = sorted(groups, key=lambda group: np.prod(stock_grid(*group[0].pixels.shape[2:0:-1], group[1])))
        tiles = [stock_tiles(chunk.pixels, max_num) for chunk, max_num in groups]
        features = extract_feature(self.model, torch.cat([t.flatten(0, 1) for t in tiles]))  # [tiles, 64, hidden]
        mark, dense = self._mark_loss(groups, features), self._class_loss(groups, features)
        sequences, answers, first = [], [], 0
        for (chunk, _), cut in zip(groups, tiles):
            rows = cut.shape[1] * features.shape[1]
            for truth in chunk.truths:
                right = questions.answers(truth.beds, truth.bunks)
                for question in (questions.QUESTION, self.others[rng.integers(len(self.others))]):
                    sequences.append((question, first, rows))
                    answers.append(self.words[right[question]])
                first += rows
        losses, hits = [], []
        half = len(sequences) // 4 * 2  # in two parts, short and long: less padding
        for part in (slice(None, half), slice(half, None)):
            if answers[part]:
                loss, hit = self._answer_loss(sequences[part], answers[part], features)
                losses.append(loss)
                hits.append(hit)
        return {'answer': torch.cat(losses).mean(), 'mark': mark, 'dense': dense, 'hits': torch.cat(hits)[::2]}

    def _mark_loss(self, groups, features: torch.Tensor) -> torch.Tensor:
        places, first = [], 0
        for chunk, max_num in groups:
            height, width = chunk.pixels.shape[1:3]
            rows = tile_count(width, height, max_num) * CELLS**2
            for truth in chunk.truths:
                places += [(first + row, kind) for row, kind in mark_places(truth, width, height, max_num)]
                first += rows
        logits = self.marks(features).flatten(0, 1).float()
        targets, at = torch.zeros_like(logits), to_device(np.array(places, np.int64).reshape(-1, 2), logits.device)
        targets[at[:, 0], at[:, 1]] = 1
        weights = 1 + (POSITIVE_WEIGHT - 1) * targets
        losses = F.binary_cross_entropy_with_logits(logits, targets, weights, reduction='sum')
        return MARK_WEIGHT * losses / max(1, len(places))

    def _class_loss(self, groups, features: torch.Tensor) -> torch.Tensor:
        shares = torch.cat([class_shares(chunk.classes, chunk.pixels.shape[2], chunk.pixels.shape[1], max_num)
                            for chunk, max_num in groups])
        weights = torch.tensor(CLASS_BALANCE, device=features.device)
        losses = F.cross_entropy(self.classes(features).flatten(0, 1).float(), shares * weights, reduction='sum')
        return CLASS_WEIGHT * losses / (shares * weights).sum()

    def _answer_loss(self, sequences, answers, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy of answer and end token, and whether the answer has the highest logit."""
        table = self.model.get_input_embeddings().weight
        vocab, ends, index = len(table), [], []
        for (question, first, rows), answer in zip(sequences, answers):
            prompt = self.prompts[question]
            index.append(np.concatenate([prompt.before, np.arange(vocab + first, vocab + first + rows), prompt.after,
                                         [answer]]))
            ends.append(len(index[-1]) - 1)
        padded = np.zeros((len(index), max(ends) + 1), np.int64)  # padding follows, so causal attention never sees it
        for row, ids in zip(padded, index):
            row[:len(ids)] = ids
        padded = to_device(padded, table.device)
        rows = torch.cat([table.to(features.dtype), features.flatten(0, 1)])
        hidden = self.model.language_model.model(inputs_embeds=F.embedding(padded, rows), use_cache=False)[0]
        at = to_device(np.array(ends), table.device)
        batch = torch.arange(len(ends), device=table.device)
        states = torch.stack([hidden[batch, at - 1], hidden[batch, at]], dim=1)
        logits = self.model.language_model.lm_head(states).float()  # [n, 2, vocab]
        target = to_device(np.array([[answer, self.end] for answer in answers]), table.device)
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction='none').view(-1, 2)
        return losses.sum(dim=1), logits[:, 0].argmax(dim=-1) == target[:, 0]
