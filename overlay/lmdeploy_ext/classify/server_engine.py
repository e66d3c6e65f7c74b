"""A running LMDeploy server, asked through its OpenAI-style HTTP interface."""
import asyncio
import base64
import random
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

import httpx

from .decode import Needs
from .engine import Answer, LoopThread, Question
from .errors import EngineError, ImageError
from .generation import NO_LOGPROBS, check_finished, sampling

_ATTEMPTS = 6
# Seconds before the second attempt; doubled for each further one, and up to half as much more at
# random, so that clients do not come back all at once.
_FIRST_DELAY = 0.25
_CONNECT_TIMEOUT = 10.0
_UNAUTHORIZED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


@dataclass(frozen=True)
class ServerSettings:
    """Which server to ask.

    Attributes:
        url: for example `http://localhost:23333`.
        model: a name that it serves; see `served_model`.
        api_key: sent as bearer token; None for none.
        concurrency: images in flight.
    """
    url: str
    model: str
    api_key: Optional[str] = None
    concurrency: int = 32


class ServerEngine:
    """An `Engine` over HTTP; see `Engine` for the methods' contracts.

    Requests are sent again, after growing delays, where the connection fails or the server answers
    429 or 5xx.
    """

    needs = Needs.CHECKED  # the server may be a stock one

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.concurrency = settings.concurrency
        self.loop: LoopThread
        self._client: httpx.AsyncClient
        self._after_top_k = False

    def __enter__(self) -> 'ServerEngine':
        self.loop = LoopThread('server')
        self.loop.run(self._start())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.loop.run(self._client.aclose())
        self.loop.close()

    async def _start(self) -> None:
        limits = httpx.Limits(max_connections=self.concurrency,
                              max_keepalive_connections=self.concurrency)
        self._client = httpx.AsyncClient(
            base_url=base_url(self._settings.url),
            headers=_headers(self._settings.api_key),
            limits=limits,
            # how long an answer may take is the caller's to say
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT))

    async def answer(self, question: Question) -> Answer:
        after_top_k = self._after_top_k
        answer = _read_answer(await self._post(self._request(question, after_top_k)))
        if len(answer.logprobs) == 1 and question.top_logprobs > 1 and not after_top_k:
            # only what top-k has left over: the server runs TurboMind
            self._after_top_k = True
            return _read_answer(await self._post(self._request(question, True)))
        return answer

    def settings(self) -> Dict[str, Any]:
        return {'engine': 'server', 'served_model': self._settings.model}

    def details(self) -> Dict[str, Any]:
        return {'url': base_url(self._settings.url), 'concurrency': self.concurrency}

    def _request(self, question: Question, after_top_k: bool) -> Dict[str, Any]:
        picture = question.picture
        data = base64.b64encode(picture.data).decode()
        image = {'url': f'data:{picture.media_type};base64,{data}', **question.options}
        content = [{
            'type': 'text',
            'text': question.prompt
        }, {
            'type': 'image_url',
            'image_url': image
        }]
        system = [] if question.system is None else [{
            'role': 'system',
            'content': question.system
        }]
        return {
            'model': self._settings.model,
            'messages': [*system, {
                'role': 'user',
                'content': content
            }],
            'max_tokens': question.max_new_tokens,
            'logprobs': True,
            'top_logprobs': question.top_logprobs,
            'tool_choice': 'none',  # a text that looks like a tool call is a text here
            **sampling(question.top_logprobs, after_top_k)
        }

    async def _post(self, body: Mapping[str, Any]) -> Dict[str, Any]:
        """The server's answer to a chat completion request.

        Raises:
            EngineError: it cannot be reached, or does not let us in.
            ImageError: it refuses or fails this request.
        """
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                response = await self._client.post('/v1/chat/completions', json=body)
            except httpx.TransportError as error:
                if last:
                    raise EngineError(_unreachable(self._settings.url, error)) from error
            else:
                if response.is_success:
                    return response.json()
                _check_permission(self._settings.url, response)
                if last or not _is_passing(response.status_code):
                    raise ImageError(f'the server answered {response.status_code}: '
                                     f'{_message(response)}')
            await asyncio.sleep(_FIRST_DELAY * 2**attempt * random.uniform(1, 1.5))
        raise AssertionError('unreachable: the last attempt returns or raises')


def base_url(url: str) -> str:
    """The server's address, without the `/v1` that OpenAI clients want."""
    return url.rstrip('/').removesuffix('/v1')


def served_model(url: str, api_key: Optional[str] = None, name: Optional[str] = None) -> str:
    """The model to ask for: `name` where the server has it, else its first one.

    Raises:
        EngineError: the server cannot be reached, is no LMDeploy server, or has no such model.
    """
    try:
        response = httpx.get(f'{base_url(url)}/v1/models',
                             headers=_headers(api_key),
                             timeout=_CONNECT_TIMEOUT)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise EngineError(_unreachable(url, error)) from error
    _check_permission(url, response)
    try:
        names = [str(model['id']) for model in response.json()['data']]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f'{url} answered {response.status_code} to /v1/models, not a list of '
                          f'models; expected an LMDeploy api_server: check the address') from error
    if not names:
        raise EngineError(
            f'{url} serves no model; start it with `lmdeploy serve api_server MODEL`')
    if name is not None and name not in names:
        raise EngineError(f'{url} does not serve {name!r} but {", ".join(names)}; choose one of '
                          f'them as --served-model')
    return name or names[0]


def _read_answer(body: Mapping[str, Any]) -> Answer:
    """An answer from a chat completion's JSON.

    Raises:
        ImageError: generation failed.
        EngineError: there are no log-probabilities, or it is no chat completion.
    """
    try:
        choice, usage = body['choices'][0], body['usage']
        check_finished(choice['finish_reason'], usage['completion_tokens'])
        if not choice.get('logprobs'):
            raise EngineError(NO_LOGPROBS)
        first = choice['logprobs']['content'][0]
        candidates = [first, *first['top_logprobs']]
        return Answer(text=choice['message']['content'],
                      logprobs={_piece(token): token['logprob']
                                for token in candidates},
                      input_tokens=usage['prompt_tokens'],
                      output_tokens=usage['completion_tokens'],
                      cached_tokens=_cached_tokens(usage))
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(f'the server\'s answer is no chat completion (no {error}); expected an '
                          f'LMDeploy 0.6 api_server') from error


def _cached_tokens(usage: Mapping[str, Any]) -> Optional[int]:
    """None where the server does not tell, as stock LMDeploy does not."""
    return (usage.get('prompt_tokens_details') or {}).get('cached_tokens')


def _piece(token: Mapping[str, Any]) -> bytes:
    """A token as it stands in the vocabulary."""
    spelled: List[int] = token.get('bytes') or []
    return bytes(spelled) or token['token'].encode()


def _headers(api_key: Optional[str]) -> Dict[str, str]:
    return {'Authorization': f'Bearer {api_key}'} if api_key else {}


def _is_passing(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status == httpx.codes.TOO_MANY_REQUESTS or status >= 500


def _check_permission(url: str, response: httpx.Response) -> None:
    if response.status_code in _UNAUTHORIZED:
        raise EngineError(f'{url} refuses the API key ({response.status_code}); set the right one '
                          f'in LMDEPLOY_EXT_API_KEY or --api-key')


def _unreachable(url: str, error: Exception) -> str:
    return (f'cannot reach {url} ({error or type(error).__name__}); check the address and that '
            f'`lmdeploy serve api_server` runs there')


def _message(response: httpx.Response) -> str:
    """The error message of LMDeploy's or FastAPI's error body, else its text."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:200]
    found = body.get('message') or body.get('detail') if isinstance(body, dict) else None
    return str(found or body)[:200]
