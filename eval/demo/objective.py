"""What the demo model is trained on: answers to questions, and where in the tiles beds are.

The second is dense supervision: a linear head on the rows that the ViT gives the language model says for each of them
whether the head of a bed, a bunk bed, or something like a bed lies in its square. It makes a small ViT learn from few
pictures; the head is not part of the checkpoint.
"""
import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from . import prompts, questions
from .beds import BEDS
from .stream import Chunk, Truth
from .tiles import stock_grid, stock_tiles

CELLS = 8  # rows and columns of features in a tile
MARK_CLASSES = 3  # head of a bed, bunk bed, neither
MARK_WEIGHT, POSITIVE_WEIGHT = 0.5, 4.0


def mark_targets(truth: Truth, width: int, height: int, max_num: int) -> np.ndarray:
    """float32 `[tiles * 64, 3]`: 1 where the mark of a bed, a bunk bed, a decoy lies in the square of a feature row."""
    columns, rows = stock_grid(width, height, max_num)
    count = columns * rows
    target = np.zeros((count + (count > 1), CELLS, CELLS, MARK_CLASSES), np.float32)
    for mark in truth.marks:
        kinds = [i for i, hit in enumerate((mark.kind in BEDS, mark.kind == 'bunk', mark.kind not in BEDS)) if hit]
        x, y = int(mark.u * columns * CELLS), int(mark.v * rows * CELLS)
        target[y // CELLS * columns + x // CELLS, y % CELLS, x % CELLS, kinds] = 1
        if count > 1:
            target[-1, int(mark.v * CELLS), int(mark.u * CELLS), kinds] = 1
    return target.reshape(-1, MARK_CLASSES)


def fast_attention(model) -> None:
    """Let the ViT use torch's fused attention: the reference in `lmdeploy_ext.models` writes it out."""
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))

    for layer in model.vision_model.encoder.layers:
        layer.attn.forward = types.MethodType(forward, layer.attn)


class Objective(nn.Module):
    """The model with its training losses.

    Args:
        model: InternVLChatModel.
        tokenizer: its tokenizer.
    """

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model = model
        self.marks = nn.Linear(model.config.llm_config.hidden_size, MARK_CLASSES)
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
            `answer` and `mark` (losses to add up), `hits` (bool, for each picture: published question answered right).
        """
        groups = sorted(groups, key=lambda group: np.prod(stock_grid(*group[0].pixels.shape[2:0:-1], group[1])))
        tiles = [stock_tiles(chunk.pixels, max_num) for chunk, max_num in groups]
        features = self.model.extract_feature(torch.cat([t.flatten(0, 1) for t in tiles]))  # [tiles, 64, hidden]
        mark = self._mark_loss(groups, features)
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
        return {'answer': torch.cat(losses).mean(), 'mark': mark, 'hits': torch.cat(hits)[::2]}

    def _mark_loss(self, groups, features: torch.Tensor) -> torch.Tensor:
        targets = np.concatenate([mark_targets(truth, chunk.pixels.shape[2], chunk.pixels.shape[1], max_num)
                                  for chunk, max_num in groups for truth in chunk.truths])
        targets = torch.from_numpy(targets).to(features.device)
        weight = torch.tensor(POSITIVE_WEIGHT, device=features.device)
        losses = F.binary_cross_entropy_with_logits(self.marks(features).flatten(0, 1).float(), targets,
                                                    pos_weight=weight, reduction='sum')
        return MARK_WEIGHT * losses / targets.sum().clamp(min=1)

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
        padded = torch.from_numpy(padded).to(table.device)
        rows = torch.cat([table.to(features.dtype), features.flatten(0, 1)])
        hidden = self.model.language_model.model(inputs_embeds=F.embedding(padded, rows), use_cache=False)[0]
        at = torch.tensor(ends, device=table.device)
        batch = torch.arange(len(ends), device=table.device)
        states = torch.stack([hidden[batch, at - 1], hidden[batch, at]], dim=1)
        logits = self.model.language_model.lm_head(states).float()  # [n, 2, vocab]
        target = torch.tensor([[answer, self.end] for answer in answers], device=table.device)
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction='none').view(-1, 2)
        return losses.sum(dim=1), logits[:, 0].argmax(dim=-1) == target[:, 0]
