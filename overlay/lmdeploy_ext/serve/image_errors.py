"""An image that cannot be used is the client's mistake: the server answers 400 and says why."""
import asyncio
import functools
from http import HTTPStatus
from types import ModuleType
from typing import Any, AsyncIterator, Callable, Sequence

from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute

from lmdeploy_ext.vl.image_errors import UnreadableImage

Refuse = Callable[[UnreadableImage], Response]


def answer_unreadable_images(api_server: ModuleType) -> None:
    """Make every endpoint of LMDeploy's server answer an `UnreadableImage` as it answers other
    requests that it cannot serve.

    An endpoint calls what its module names at that moment, so that a patch of it counts. FastAPI
    keeps a route's function in two places: 0.6.0 and 0.6.1 have made the application's routes by
    now and call `dependant.call`, 0.6.2 and newer make them later, from `endpoint`.

    Args:
        api_server: `lmdeploy.serve.openai.api_server`.
    """

    def refuse(error: UnreadableImage) -> Response:
        return api_server.create_error_response(HTTPStatus.BAD_REQUEST, str(error))

    for route in _routes(api_server):
        if asyncio.iscoroutinefunction(route.endpoint):
            endpoint = _guarded(api_server, route.endpoint, refuse)
            route.endpoint = route.dependant.call = endpoint


def _routes(api_server: ModuleType) -> Sequence[APIRoute]:
    owner = api_server.router if hasattr(api_server, 'router') else api_server.app
    return [route for route in owner.routes if isinstance(route, APIRoute)]


def _guarded(api_server: ModuleType, endpoint: Callable, refuse: Refuse) -> Callable:

    @functools.wraps(endpoint)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            response = await getattr(api_server, endpoint.__name__, endpoint)(*args, **kwargs)
        except UnreadableImage as error:
            return refuse(error)
        if isinstance(response, StreamingResponse):
            return _Stream(response, refuse)
        return response

    return guarded


class _Stream(StreamingResponse):
    """A stream whose status is sent with its first piece: until then it may still be refused.

    Later pieces pass as they come.
    """

    def __init__(self, stream: StreamingResponse, refuse: Refuse) -> None:
        super().__init__(stream.body_iterator, stream.status_code, dict(stream.headers),
                         stream.media_type, stream.background)
        self._refuse = refuse

    async def stream_response(self, send: Any) -> None:
        pieces = aiter(self.body_iterator)
        try:
            first = [await anext(pieces)]
        except StopAsyncIteration:
            first = []
        except UnreadableImage as error:
            await self._refuse(error)({'type': 'http'}, None, send)
            return
        self.body_iterator = _chain(first, pieces)
        await super().stream_response(send)


async def _chain(first: Sequence[Any], rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    for piece in first:
        yield piece
    async for piece in rest:
        yield piece
