"""The run: images from a source, through an engine, into a result file."""
import asyncio
import logging
import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Callable, Deque, Iterator, List, Optional, Tuple

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.image_errors import UnreadableImage
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_source import is_remote, read

from .answer_cache import VerdictCache, content_key
from .decode import open_picture
from .engine import Engine, Question
from .errors import ClassifyError, ImageError, one_line
from .item import Item
from .labels import Labels
from .probability import TOP_LOGPROBS, label_probabilities, most_probable
from .prompt_layout import image_last
from .result_file import ResultFile
from .row import Row, Verdict, answered, failed
from .source import Source

_LOGGER = logging.getLogger('lmdeploy_ext')
# Rows are written in the source's order, so a slow image holds back those behind it. As many
# images as this, times the concurrency, may be ahead of it; finished ones wait as rows, which are
# small.
_LOOK_AHEAD = 4
# Fetching waits for the network and needs no core; a slow server must not hold up what has come.
_FETCHERS = 16
_BLOCK = 64  # items that are read from the source at once


@dataclass(frozen=True)
class RunSettings:
    """How a run asks and what it bears.

    Attributes:
        prompt: asked of each image; None where each item has its own.
        max_new_tokens: answer tokens at most; None for as many as the longest label has.
        max_dynamic_patch: tiles that an image is cut into at most, thumbnail not counted; None for
            the model's own. An item's own option goes before it.
        prompt_first: whether the prompt stands before the image. Not every model was trained with
            that.
        timeout: seconds that one answer may take.
        limits: what an image may be, and where it may be fetched from; None for the limits of
            this process's settings.
        decoders: worker threads that read and decode; None for one a core, 8 at most.
    """
    prompt: Optional[str] = None
    max_new_tokens: Optional[int] = None
    max_dynamic_patch: Optional[int] = None
    prompt_first: bool = False
    timeout: float = 600.0
    limits: Optional[ImageLimits] = None
    decoders: Optional[int] = None


@dataclass(frozen=True)
class Completion:
    """A row, and when it came about.

    Attributes:
        row: as written.
        started, finished: monotonic seconds; from the image's admission to its answer.
        reused: whether it is an identical image's answer.
        cached_tokens: see `Answer`; None also where nothing was asked.
    """
    row: Row
    started: float
    finished: float
    reused: bool
    cached_tokens: Optional[int] = None


def run(source: Source,
        engine: Engine,
        labels: Labels,
        result: ResultFile,
        settings: RunSettings,
        on_completion: Optional[Callable[[Completion], None]] = None) -> None:
    """Classify each image of `source` that has no row yet, and write its row to `result`.

    Rows are written in the source's order, each as soon as it and those before it are there, so
    that an interrupted and resumed run gives the same file as an uninterrupted one, times apart.
    Memory does not grow with the number of images.

    Args:
        engine: started. It is kept busy with `engine.concurrency` images.
        result: begun.
        on_completion: called with each row that has been written, on the engine's thread.

    Raises:
        EngineError, SourceError, OutputError: the run cannot go on; rows so far are written.
        KeyboardInterrupt: Ctrl-C; likewise.
    """
    workers = settings.decoders or min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, 'decode') as pool, \
            ThreadPoolExecutor(_FETCHERS, 'fetch') as fetchers, \
            closing(VerdictCache()) as cache:
        desk = _Desk(engine, labels, settings, cache, pool, fetchers)
        engine.loop.run(_drive(source, desk, result, on_completion))


async def _drive(source: Source, desk: '_Desk', result: ResultFile,
                 on_completion: Optional[Callable[[Completion], None]]) -> None:
    """Keep as many images in work as there is room for, and write their rows in order."""
    window: 'Deque[asyncio.Task[Completion]]' = deque()

    def write(completion: Completion) -> None:
        result.append(completion.row)
        if on_completion is not None:
            on_completion(completion)

    items = (item for item in source if item.id not in result.done)
    try:
        while block := await desk.in_thread(_next_block, items):
            for item in block:
                if len(window) == desk.room:
                    write(await window.popleft())
                window.append(asyncio.create_task(desk.complete(item)))
                while window and window[0].done():
                    write(window.popleft().result())
        while window:
            write(await window.popleft())
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


def _next_block(items: Iterator[Item]) -> List[Item]:
    return list(islice(items, _BLOCK))


class _Desk:
    """Where an image becomes a completion; runs on the engine's event loop.

    Attributes:
        room: images that may be in work, or done and waiting for those before them.
    """

    def __init__(self, engine: Engine, labels: Labels, settings: RunSettings, cache: VerdictCache,
                 pool: ThreadPoolExecutor, fetchers: ThreadPoolExecutor) -> None:
        self.room = _LOOK_AHEAD * engine.concurrency
        self._engine = engine
        self._labels = labels
        self._settings = settings
        self._cache = cache
        self._limits = settings.limits or ImageSettings.of(Settings.from_env()).limits
        self._pool, self._fetchers = pool, fetchers
        self._admission = asyncio.Semaphore(engine.concurrency)

    async def complete(self, item: Item) -> Completion:
        """Classify one image; whatever goes wrong with it alone becomes an error row."""
        async with self._admission:
            started = time.monotonic()
            # a task of its own: an exception of any kind is its result, and ends nothing else
            task = asyncio.create_task(self._classify(item))
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()
            finished = time.monotonic()
        error = ImageError('the engine dropped the request') if task.cancelled() \
            else task.exception()
        if isinstance(error, ClassifyError):
            raise error
        if error is not None:
            if not isinstance(error, (ImageError, UnreadableImage)):
                _LOGGER.warning('unexpected failure of %s', item.id, exc_info=error)
            row = failed(item.id, item.path, one_line(error), finished - started)
            return Completion(row, started, finished, False)
        verdict, reused = task.result()
        row = answered(item.id, item.path, verdict, finished - started)
        return Completion(row, started, finished, reused,
                          None if reused else verdict.cached_tokens)

    async def _classify(self, item: Item) -> Tuple[Verdict, bool]:
        pool = self._fetchers if is_remote(item.image) else self._pool
        data = await asyncio.get_running_loop().run_in_executor(pool, read, item.image,
                                                                self._limits)
        key = content_key(data, item)
        return await self._cache.get(key, lambda: self._ask(item, data))

    async def _ask(self, item: Item, data: bytes) -> Verdict:
        settings, labels = self._settings, self._labels
        picture = await self.in_thread(open_picture, data, self._engine.needs, self._limits)
        options = dict(item.options)
        if settings.max_dynamic_patch is not None:
            options.setdefault('max_dynamic_patch', settings.max_dynamic_patch)
        prompt = settings.prompt or item.prompt
        question = Question(picture=picture,
                            prompt=image_last(prompt) if settings.prompt_first else prompt,
                            system=item.system,
                            options=options,
                            max_new_tokens=settings.max_new_tokens or labels.longest,
                            top_logprobs=TOP_LOGPROBS)
        try:
            answer = await asyncio.wait_for(self._engine.answer(question), settings.timeout)
        except asyncio.TimeoutError as error:
            raise ImageError(f'no answer within {settings.timeout:g} seconds') from error
        probabilities = label_probabilities(answer.logprobs, labels, answer.text)
        return Verdict(most_probable(probabilities), probabilities, answer.text,
                       answer.input_tokens, answer.output_tokens, answer.cached_tokens)

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
