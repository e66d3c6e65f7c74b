"""A request of a batch that fails: the others are answered first, then the caller is told. And
what a batch's answers tell beyond upstream's fields."""
from typing import Any, AsyncIterator, List, Optional


class RestFirst:
    """Stands for an `AsyncEngine` while a batch runs on it; errors of `generate` wait.

    Upstream lets the first error out of the event loop: the requests beside it stay behind,
    half-done, and a stream whose thread has died that way is waited for forever.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._errors: List[Exception] = []
        self._cached: List[Optional[int]] = []  # by the request's place in the batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The outputs of one request, up to its error. Upstream begins them in the batch's order.
        """
        self._cached.append(None)
        return self._outputs(len(self._cached) - 1, self._engine.generate(*args, **kwargs))

    async def _outputs(self, index: int, outputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for output in outputs:
                self._cached[index] = getattr(output, 'cached_tokens', None)
                yield output
        except Exception as error:  # of any kind: `raise_first` hands it to the caller
            self._errors.append(error)

    def tell_cached(self, response: Any) -> None:
        """Give an upstream's `Response` its `cached_tokens`, see `CountedEngine`."""
        response.cached_tokens = self._cached[response.index]

    def raise_first(self) -> None:
        """Raise the error that came first, if there was one."""
        if self._errors:
            raise self._errors[0]
