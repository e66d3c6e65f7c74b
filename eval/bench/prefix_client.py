"""Asks LMDeploy in this process, one request or many at once, and takes the time."""
import asyncio
import itertools
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

from lmdeploy_ext.classify.generation import check_finished

Messages = List[Dict[str, Any]]


@dataclass(frozen=True)
class Timed:
    """An answer.

    Attributes:
        first: seconds from the request to its first token.
        input_tokens: of the prompt, those of images included.
    """
    first: float
    input_tokens: int


class Client:
    """One at most of each engine, on the event loop that the engine was made on.

    Args:
        pipe: what `lmdeploy.pipeline` gave.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._sessions = itertools.count(1)

    def tokens(self, text: str) -> int:
        """How many a text becomes."""
        return len(self._pipe.tokenizer.encode(text, add_bos=False))

    def text_tokens(self, messages: Messages) -> int:
        """Tokens of a request beside those of its images."""
        from lmdeploy.vl.constants import IMAGE_TOKEN
        prompt = self._pipe.vl_prompt_template.messages2prompt(messages)
        return sum(map(self.tokens, prompt.split(IMAGE_TOKEN)))

    async def ask(self, messages: Messages, new_tokens: int) -> Timed:
        """Ask for an answer of so many tokens, as a stream.

        Raises:
            ImageError: there is none.
            UnreadableImage: likewise, because of the image.
        """
        begin, first, last = time.perf_counter(), None, None
        stream = self._pipe.generate(messages, next(self._sessions),
                                     gen_config=_greedy(new_tokens))
        async with aclosing(stream):
            async for last in stream:
                if first is None and last.generate_token_len:
                    first = time.perf_counter() - begin
        check_finished(last.finish_reason, last.generate_token_len)
        return Timed(first, last.input_token_len)

    async def ask_all(self, requests: Sequence[Messages], concurrency: int) -> List[Timed]:
        """One token of each answer, with so many requests in flight."""
        # requests beyond the engine's instances would look for a free one ten times a second
        limit = asyncio.Semaphore(min(concurrency, self._pipe.instance_num))

        async def ask(messages: Messages) -> Timed:
            async with limit:
                return await self.ask(messages, new_tokens=1)

        tasks = [asyncio.ensure_future(ask(messages)) for messages in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # what is measured next must have the engine for itself
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


def _greedy(new_tokens: int) -> Any:
    """Settings of an answer that is so long, whatever the model would say."""
    import lmdeploy

    # do_sample with top_k=1 is greedy too; without it LMDeploy 0.6.4 warns of each request
    return lmdeploy.GenerationConfig(max_new_tokens=new_tokens, ignore_eos=True, do_sample=True,
                                     top_k=1, top_p=1.0, temperature=1.0, random_seed=0)
