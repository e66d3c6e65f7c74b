"""How much of its prompt each request of an `AsyncEngine` found in the engine's prefix cache."""
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any, AsyncIterator, Callable, Iterator, List, Optional

from lmdeploy_ext.pytorch.prefix.sent_request import SentRequest

_NOTED: 'ContextVar[Optional[List[CountedEngine]]]' = ContextVar('noted', default=None)


class CountedEngine:
    """Stands for an `AsyncEngine` while one request runs on it, and sees the engine's outputs.

    Attributes:
        cached_tokens: prompt tokens that were not computed; TurboMind: at least so many. 0 where
            prefix caching is off; None before the first output, and where it is not known.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.cached_tokens = None if engine.backend_config.enable_prefix_caching else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def get_generator(self, *args: Any, **kwargs: Any) -> '_CountedInstance':
        """The instance of the engine that answers this request."""
        return _CountedInstance(await self._engine.get_generator(*args, **kwargs), self)


class _CountedInstance:
    """Stands for an engine's instance; `counted` is told what its request found."""

    def __init__(self, instance: Any, counted: CountedEngine) -> None:
        self._instance, self._counted = instance, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)

    async def async_stream_infer(self, session_id: int, **kwargs: Any) -> AsyncIterator[Any]:
        """Outputs of the request."""
        sent = (SentRequest(self._instance, session_id)
                if self._counted.backend == 'pytorch' else None)
        async with aclosing(self._instance.async_stream_infer(session_id=session_id,
                                                              **kwargs)) as outputs:
            async for output in outputs:
                if self._counted.cached_tokens is None:
                    self._counted.cached_tokens = (getattr(output, 'cached_tokens', None)
                                                   if sent is None else sent.cached_tokens())
                yield output


async def generate(original: Callable[..., AsyncIterator[Any]], engine: Any, *args: Any,
                   **kwargs: Any) -> AsyncIterator[Any]:
    """Upstream's `GenOut` of one request, each with its `cached_tokens`.

    Args:
        original: upstream's `AsyncEngine.generate`; its other arguments follow.
    """
    counted, noted = CountedEngine(engine), _NOTED.get()
    if noted is not None:
        noted.append(counted)
    async with aclosing(original(counted, *args, **kwargs)) as outputs:
        async for output in outputs:
            output.cached_tokens = counted.cached_tokens
            yield output


@contextmanager
def noted_in(requests: List[CountedEngine]) -> Iterator[None]:
    """Requests that begin in this context stand in the list, in order."""
    before = _NOTED.set(requests)
    try:
        yield
    finally:
        _NOTED.reset(before)
