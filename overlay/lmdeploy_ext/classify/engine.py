"""What an engine is: it answers one image at a time, many at once, on an event loop of its own."""
import asyncio
import concurrent.futures
import threading
from dataclasses import dataclass
from typing import Any, Coroutine, Dict, Mapping, Optional, Protocol, TypeVar, Union

from .decode import Needs, Picture

T = TypeVar('T')
_CLEAN_UP_SECONDS = 5


@dataclass(frozen=True)
class Question:
    """What an engine is asked about one image.

    Attributes:
        picture: the image.
        prompt: the user's text.
        system: system message; None for the chat template's.
        options: `detail` and `max_dynamic_patch` of this image.
        max_new_tokens: answer tokens at most.
        top_logprobs: log-probabilities of how many first tokens are wanted.
    """
    picture: Picture
    prompt: str
    system: Optional[str]
    options: Mapping[str, Union[str, int]]
    max_new_tokens: int
    top_logprobs: int


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        text: as generated, special tokens left out.
        logprobs: of the first token: natural logarithms of the most probable tokens'
            probabilities, by token id or by vocabulary piece.
        input_tokens: prompt and image.
        output_tokens: generated.
        cached_tokens: of the input tokens, those that the engine had in its prefix cache
            (TurboMind: at least so many); None where it does not say.
    """
    text: str
    logprobs: Mapping[Union[int, bytes], float]
    input_tokens: int
    output_tokens: int
    cached_tokens: Optional[int] = None


class Engine(Protocol):
    """Answers questions. `with engine:` starts and closes it.

    Attributes:
        needs: what it has to be given of each image; valid between start and close.
        concurrency: questions that it should be kept busy with.
        loop: where `answer` runs; valid between start and close.
    """
    needs: Needs
    concurrency: int
    loop: 'LoopThread'

    def __enter__(self) -> 'Engine':
        """Load the model, or reach the server.

        Raises:
            EngineError: that fails, or its answers come without log-probabilities.
        """

    def __exit__(self, *exc_info: object) -> None:
        ...

    async def answer(self, question: Question) -> Answer:
        """Answer one question.

        Raises:
            ImageError: this question has no answer.
            UnreadableImage: likewise, because of the image.
            EngineError: no question will have one; the run must stop.
        """

    def settings(self) -> Dict[str, Any]:
        """What decides its answers; rows with different settings do not belong in one file."""

    def details(self) -> Dict[str, Any]:
        """What else a result file should tell: address, devices, concurrency."""


class LoopThread:
    """An event loop on a thread of its own.

    LMDeploy binds its queues to the loop that first uses them, so all requests of an engine must
    come from one loop for as long as it lives; and the caller's thread may have a loop of its own
    (a notebook has).
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result.

        Ctrl-C cancels it, waits until it has cleaned up, and raises KeyboardInterrupt.
        """
        finished = threading.Event()

        async def run_to_end() -> T:
            try:
                return await coroutine
            finally:
                finished.set()

        future = asyncio.run_coroutine_threadsafe(run_to_end(), self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            finished.wait(_CLEAN_UP_SECONDS)
            raise

    def close(self) -> None:
        """Cancel what still runs, LMDeploy's own loops included, and stop the thread.

        A thread that does not listen, since it is loading a model, is left to end with the
        process.
        """
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_others(), self.loop)
        try:
            cancelled.result(2 * _CLEAN_UP_SECONDS)
        except concurrent.futures.TimeoutError:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CLEAN_UP_SECONDS)
