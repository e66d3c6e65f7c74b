"""Ask LMDeploy's PyTorch engine on the CPU, in terms of token ids."""
import asyncio
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Union

from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy.pytorch.engine import Engine


@dataclass(frozen=True)
class Answer:
    """What the engine generated."""
    ids: List[int]
    logprobs: Optional[List[Dict[int, float]]]


def greedy(tokens: int, **fields) -> GenerationConfig:
    """The likeliest token but the end token; only the number of tokens ends an answer."""
    return GenerationConfig(max_new_tokens=tokens, top_k=1, temperature=1.0, ignore_eos=True,
                            **fields)


def ask(folder: str,
        prompts: Sequence[List[int]],
        configs: Union[GenerationConfig, Sequence[GenerationConfig]],
        rounds: int = 1,
        watch=None,
        **settings) -> List[Answer]:
    """Answers to prompts that are asked at the same time.

    Args:
        folder: of the checkpoint.
        prompts: token ids.
        configs: one for all prompts, or one for each.
        rounds: how often the prompts are asked, one after another; the last answers count.
        watch: called with the engine before it is asked.
        settings: of `PytorchEngineConfig`.
    """
    if isinstance(configs, GenerationConfig):
        configs = [configs] * len(prompts)

    async def run():
        engine = Engine(folder, PytorchEngineConfig(device_type='cpu', **settings))
        if watch:
            watch(engine)
        for number in range(rounds):
            ids = range(number * len(prompts), (number + 1) * len(prompts))
            answers = await asyncio.gather(*map(ask_one, [engine] * len(ids), ids, prompts,
                                                configs))
        return answers

    return asyncio.run(run())


async def ask_one(engine: Engine, session: int, prompt: List[int], config: GenerationConfig,
                  end: bool = True) -> Answer:
    """The answer to one prompt; `end` ends the session, which could go on otherwise."""
    instance, output = engine.create_instance(), None
    async for output in instance.async_stream_infer(session, list(prompt), config):
        pass
    if end:
        await instance.async_end(session)
    return Answer(list(output.token_ids), output.logprobs and list(output.logprobs))
