"""The demo model's answers by the plain fp32 reference, with LMDeploy's own preprocessing and none
of its engines."""
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Callable, Iterable, Iterator, Sequence, TypeVar, Union

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer

from ...models.internvl import InternVLChatModel
from . import prompts, questions
from .tiles import MEAN, STD, TILE

Item = TypeVar('Item')


def normalised(tiles: torch.Tensor) -> torch.Tensor:
    """uint8 RGB `[..., height, width, 3]` as float32 `[..., 3, height, width]` of ImageNet's mean
    and standard deviation, computed as upstream does."""
    pixels = tiles.movedim(-1, -3)
    mean, std = (torch.tensor(x, device=tiles.device).view(3, 1, 1) for x in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def upstream_tiles(image: Image.Image, max_num: int) -> torch.Tensor:
    """Normalised float32 `[tiles, 3, 448, 448]`, as LMDeploy's `InternVLVisionModel` makes
    them."""
    from lmdeploy.vl.model.internvl import dynamic_preprocess
    tiles = dynamic_preprocess(image.convert('RGB'),
                               max_num=max_num,
                               image_size=TILE,
                               use_thumbnail=True)
    return normalised(torch.from_numpy(np.stack([np.asarray(tile) for tile in tiles])))


@dataclass(frozen=True)
class Reference:
    """A model and its tokenizer, ready to answer. Load it with `Reference.load`."""
    model: InternVLChatModel
    tokenizer: object

    @classmethod
    def load(cls, folder: Union[str, Path], device: str = 'cpu') -> 'Reference':
        """Load a checkpoint in fp32."""
        model = InternVLChatModel.from_pretrained(folder, torch_dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model.img_context_token_id = tokenizer.convert_tokens_to_ids('<IMG_CONTEXT>')
        return cls(model.eval().to(device), tokenizer)

    def input_ids(self, tiles: int, question: str) -> list[int]:
        """The prompt with an image of `tiles` tiles."""
        prompt = prompts.encode(self.tokenizer, question)
        return prompt.before + [self.model.img_context_token_id
                                ] * (tiles * self.model.num_image_token) + prompt.after

    def probability(
        self,
        tiles: torch.Tensor,
        question: str = questions.QUESTION,
        words: Sequence[str] = (questions.POSITIVE, questions.NEGATIVE)
    ) -> float:
        """Probability of `words[0]` against the other words, from the first answer token.

        Args:
            tiles: `[tiles, 3, 448, 448]`, normalised.
        """
        return float(self.batch_probabilities(tiles[None], question, words)[0])

    @torch.no_grad()
    def batch_probabilities(
        self,
        tiles: torch.Tensor,
        question: str = questions.QUESTION,
        words: Sequence[str] = (questions.POSITIVE, questions.NEGATIVE)
    ) -> torch.Tensor:
        """`probability` of several images with equally many tiles: float32 `[images]`.

        Args:
            tiles: `[images, tiles, 3, 448, 448]`, normalised.
        """
        device = self.model.device
        ids = torch.tensor([self.input_ids(tiles.shape[1], question)] * len(tiles), device=device)
        logits = self.model(pixel_values=tiles.flatten(0, 1).to(device),
                            input_ids=ids,
                            use_cache=False).logits[:, -1].float()
        wanted = [self.tokenizer.encode(word, add_special_tokens=False)[0] for word in words]
        return logits[:, wanted].softmax(dim=1)[:, 0]

    def probabilities(self,
                      items: Iterable[Item],
                      open_image: Callable[[Item], Image.Image],
                      max_num: int,
                      threads: int = 1) -> Iterator[tuple[Item, float]]:
        """Answer the published question for every item, in order; `threads` prepare images
        meanwhile."""

        def prepare(item: Item) -> tuple[Item, torch.Tensor]:
            return item, upstream_tiles(open_image(item), max_num)

        with ThreadPoolExecutor(threads) as pool:
            for item, tiles in ahead(pool, prepare, items, 2 * threads):
                yield item, self.probability(tiles)


def ahead(pool: ThreadPoolExecutor, work: Callable, items: Iterable, depth: int) -> Iterator:
    """`map` in order, at most `depth` items ahead."""
    waiting: list = []
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > depth:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def from_bytes(data: bytes) -> Image.Image:
    """Open an image file's bytes with Pillow."""
    return Image.open(BytesIO(data))
