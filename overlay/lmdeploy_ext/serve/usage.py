"""`usage.prompt_tokens_details.cached_tokens` in the OpenAI API of LMDeploy's server.

https://platform.openai.com/docs/api-reference/chat/object (usage)
"""
import json
from contextlib import aclosing
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional

from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from .cached_tokens import CountedEngine, noted_in

_PREFIX = 'data: '


async def with_cached_tokens(endpoint: Callable[..., Awaitable[Any]], request: Any,
                             raw_request: Any) -> Any:
    """An endpoint's response whose `usage` tells the cached tokens, where they are known.

    Args:
        endpoint: upstream's `chat_completions_v1` or `completions_v1`.
        request: upstream's model of the request.
        raw_request: FastAPI's.
    """
    prompts: List[CountedEngine] = []
    with noted_in(prompts):
        response = await endpoint(request, raw_request)
    if isinstance(response, StreamingResponse):
        if request.stream_options and request.stream_options.include_usage:
            response.body_iterator = _events(response.body_iterator)
        return response
    if not isinstance(response, BaseModel):  # an error
        return response
    found = [prompt.cached_tokens for prompt in prompts]
    body = response.model_dump(mode='json', by_alias=True)
    _add(body, None if None in found else sum(found))
    return JSONResponse(body)


async def _events(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Events of a stream; each has the usage so far of the prompt that it is about.

    A server runs them in another context than the endpoint, after that has returned; the prompts
    begin here, one after the other.
    """
    prompts: List[CountedEngine] = []
    async with aclosing(events):
        while True:
            with noted_in(prompts):
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            yield _with_details(event, prompts[-1].cached_tokens if prompts else None)


def _with_details(event: str, cached_tokens: Optional[int]) -> str:
    if not event.startswith(_PREFIX + '{'):  # the end
        return event
    body = json.loads(event[len(_PREFIX):])
    _add(body, cached_tokens)
    return f'{_PREFIX}{json.dumps(body, ensure_ascii=False, separators=(",", ":"))}\n\n'


def _add(body: Dict[str, Any], cached_tokens: Optional[int]) -> None:
    if body.get('usage') and cached_tokens is not None:
        body['usage']['prompt_tokens_details'] = {'cached_tokens': cached_tokens}
