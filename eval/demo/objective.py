"""What the demo model is trained on: answers to questions, and what is where in the tiles.

The second is dense supervision: linear heads on the rows that the ViT gives the language model say
for each of them what its square shows, and whether the head of a bed, the middle of a bunk bed or
of something like a bed lies in it. It makes a small ViT learn from few pictures; the heads are not
part of the checkpoint.
"""
import types

import torch
import torch.nn.functional as F
from torch import nn

from ...models.internvl import pixel_shuffle
from . import prompts
from .batch import MARK_CLASSES, Batch
from .scene import CLASSES

MARK_WEIGHT, POSITIVE_WEIGHT, CLASS_WEIGHT = 0.3, 4.0, 1.0
#: Weight of each of `scene.CLASSES`, the room first: small things count more than their area.
CLASS_BALANCE = (0.3, 0.5, 1.0, 4.0, 1.0, 4.0, 1.0, 1.0, 1.0)


def fast_attention(model) -> None:
    """Let the ViT use torch's fused attention: the reference in `lmdeploy_ext.models` writes it
    out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if not x.is_cuda:  # a CPU's fused attention is twice as fast in fp32
            qkv = qkv.float()
        mixed = F.scaled_dot_product_attention(*qkv).to(x.dtype)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    for layer in model.vision_model.encoder.layers:
        layer.attn.forward = types.MethodType(forward, layer.attn)


def extract_feature(model, patches: torch.Tensor) -> torch.Tensor:
    """`InternVLChatModel.extract_feature` from patches, with a matrix product instead of a
    convolution.

    `[tiles, patches, 3 * side * side]` -> `[tiles, tokens, hidden]`.
    """
    embeddings = model.vision_model.embeddings
    tokens = F.linear(patches, embeddings.patch_embedding.weight.flatten(1),
                      embeddings.patch_embedding.bias)
    tokens = torch.cat([embeddings.class_embedding.expand(len(tokens), -1, -1), tokens], dim=1)
    encoded = model.vision_model.encoder(tokens +
                                         embeddings.position_embedding).last_hidden_state[:, 1:]
    grid = encoded.unflatten(1, (embeddings.grid, embeddings.grid))
    return model.mlp1(
        pixel_shuffle(grid, model.config.downsample_ratio, model.config.ps_version).flatten(1, 2))


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
        self.marks, self.classes = nn.Linear(hidden,
                                             MARK_CLASSES), nn.Linear(hidden,
                                                                      len(CLASSES) + 1)
        nn.init.constant_(self.marks.bias, -3.0)
        self.register_buffer('before',
                             torch.tensor(prompts.encode(tokenizer, '').before),
                             persistent=False)
        self.register_buffer('balance', torch.tensor(CLASS_BALANCE), persistent=False)
        self.end = tokenizer.convert_tokens_to_ids(prompts.END)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Losses of a batch: `answer`, `mark` and `dense`, to add up; and `hits`, for each picture
        whether the published question is answered right."""
        features = extract_feature(self.model, batch.patches)  # [n * t, 64, hidden]
        rows = features.flatten(0, 1)
        answer, hits = self._answer_loss(features, batch)
        return {
            'answer': answer,
            'mark': self._mark_loss(rows, batch.marks),
            'dense': self._class_loss(rows, batch),
            'hits': hits
        }

    def _mark_loss(self, rows: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
        weights = 1 + (POSITIVE_WEIGHT - 1) * marks
        losses = F.binary_cross_entropy_with_logits(self.marks(rows).float(),
                                                    marks,
                                                    weights,
                                                    reduction='sum')
        return MARK_WEIGHT * losses / marks.sum().clamp(min=1)

    def _class_loss(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        shares = batch.classes * self.balance.float()
        losses = F.cross_entropy(self.classes(rows).float(), shares, reduction='sum')
        return CLASS_WEIGHT * losses / shares.sum()

    def _answer_loss(self, features: torch.Tensor,
                     batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross entropy of answer and end token, and whether the answer has the highest logit."""
        table = self.model.get_input_embeddings().weight
        count, width = batch.tail.shape
        image = features.view(count // 2, 1, -1, features.shape[-1]).expand(-1, 2, -1,
                                                                            -1).flatten(0, 1)
        before = table[self.before].expand(count, -1, -1)
        places = torch.arange(len(table), device=table.device)
        tail = (batch.tail.unsqueeze(-1) == places).to(
            table.dtype) @ table  # an embedding without a scatter backwards
        hidden = self.model.language_model.model(inputs_embeds=torch.cat([before, image, tail],
                                                                         dim=1),
                                                 use_cache=False)[0][:, -width:]
        at = torch.stack([batch.last, batch.last + 1], dim=1).unsqueeze(-1)  # [2 n, 2, 1]
        chosen = (at == torch.arange(width, device=table.device)).to(hidden.dtype) @ hidden
        logits = self.model.language_model.lm_head(chosen).float()  # [2 n, 2, vocab]
        target = torch.stack([batch.answer, torch.full_like(batch.answer, self.end)], dim=1)
        loss = 2 * F.cross_entropy(logits.flatten(0, 1), target.flatten())
        return loss, (logits[:, 0].argmax(dim=-1) == batch.answer)[::2]
