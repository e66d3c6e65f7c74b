"""Prompts with images for the PyTorch engine, as token ids and features: no vision model runs."""
import asyncio
import random
from dataclasses import dataclass, field
from typing import Callable, List, Sequence, Tuple

import numpy as np
from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy.pytorch.engine import Engine

from tests.parity.engine import Answer

HIDDEN = 256  # of the tiny checkpoints
BLOCK = 16
IMAGE_ID = 0  # upstream's, at all positions of all images


@dataclass(frozen=True)
class Prompt:
    """Token ids with images in them.

    Attributes:
        ids: with `IMAGE_ID` where features belong.
        features: of each image, [tokens, HIDDEN] float32.
        ranges: of each image, its first position and the one behind its last.
    """
    ids: List[int] = field(default_factory=list)
    features: List[np.ndarray] = field(default_factory=list)
    ranges: List[Tuple[int, int]] = field(default_factory=list)


def image(seed: int, tokens: int) -> np.ndarray:
    """Features of an image, large enough to decide the answer."""
    return np.random.default_rng(seed).standard_normal((tokens, HIDDEN)).astype(np.float32)


def prompt_of(*parts) -> Prompt:
    """A prompt of texts (lists of ids) and images (features), in order."""
    made = Prompt()
    for part in parts:
        if isinstance(part, np.ndarray):
            start = len(made.ids)
            made.features.append(part)
            made.ranges.append((start, start + len(part)))
            part = [IMAGE_ID] * len(part)
        made.ids.extend(part)
    return made


def text(seed: int, tokens: int) -> List[int]:
    """Random ids of the tiny checkpoints' vocabulary."""
    chance = random.Random(seed)
    return [chance.randrange(1, 300) for _ in range(tokens)]


async def ask_one(engine: Engine, session: int, prompt: Prompt, config: GenerationConfig,
                  end: bool = True) -> Answer:
    """The answer to one prompt; `end` ends the session, which could go on otherwise."""
    instance, output = engine.create_instance(), None
    async for output in instance.async_stream_infer(session, list(prompt.ids), config,
                                                    input_embeddings=prompt.features or None,
                                                    input_embedding_ranges=prompt.ranges or None):
        pass
    if end:
        await instance.async_end(session)
    return Answer(list(output.token_ids), output.logprobs and list(output.logprobs))


def with_engine(folder: str, talk: Callable, **settings):
    """What `await talk(engine)` returns, with an engine of small blocks on the CPU."""

    async def run():
        engine = Engine(folder, PytorchEngineConfig(device_type='cpu', block_size=BLOCK,
                                                    **settings))
        # an engine that fails answers nobody
        return await asyncio.wait_for(talk(engine), timeout=300)

    return asyncio.run(run())


def ask(folder: str, prompts: Sequence[Prompt], config: GenerationConfig, at_once: int = 8,
        watch: Callable = None, **settings) -> List[Answer]:
    """Answers to prompts, so many of them at the same time, begun in order.

    Args:
        watch: called with the engine before it is asked.
    """

    async def talk(engine):
        if watch:
            watch(engine)
        turn = asyncio.Semaphore(at_once)

        async def in_turn(session, prompt):
            async with turn:
                return await ask_one(engine, session, prompt, config)

        return await asyncio.gather(*map(in_turn, range(len(prompts)), prompts))

    return with_engine(folder, talk, **settings)
