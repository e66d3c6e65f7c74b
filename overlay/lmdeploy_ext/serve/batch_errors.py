"""A request of a batch that fails: the others are answered first, then the caller is told."""
from typing import Any, AsyncIterator, List


class RestFirst:
    """Stands for an `AsyncEngine` while a batch runs on it; errors of `generate` wait.

    Upstream lets the first error out of the event loop: the requests beside it stay behind,
    half-done, and a stream whose thread has died that way is waited for forever.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._errors: List[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The outputs of one request, up to its error."""
        try:
            async for output in self._engine.generate(*args, **kwargs):
                yield output
        except Exception as error:  # of any kind: `raise_first` hands it to the caller
            self._errors.append(error)

    def raise_first(self) -> None:
        """Raise the error that came first, if there was one."""
        if self._errors:
            raise self._errors[0]
