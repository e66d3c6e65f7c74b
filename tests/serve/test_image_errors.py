"""Endpoints: an image that cannot be used is a 400 with upstream's body; nothing else changes."""
import asyncio
import types
from http import HTTPStatus

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from lmdeploy_ext.serve.image_errors import answer_unreadable_images
from lmdeploy_ext.vl.image_errors import BadImageReference


class Question(BaseModel):
    pieces: int = 2
    fail_at: int = -1


def create_error_response(status: HTTPStatus, message: str):
    return JSONResponse(dict(object='error', message=message, code=status.value), status.value)


async def pieces(question, sent):
    """Pieces of an answer; one of them is an image that cannot be used."""
    for number in range(question.pieces):
        if number == question.fail_at:
            raise BadImageReference('no such file')
        sent.append(number)
        yield f'{number};'
        await asyncio.sleep(0)


def server(routes):
    """A module like upstream's; its endpoints stand in `routes`, an application or a router."""
    module = types.ModuleType('api_server')
    module.create_error_response = create_error_response
    module.sent = []
    setattr(module, 'router' if isinstance(routes, APIRouter) else 'app', routes)

    @routes.post('/whole')
    async def whole(question: Question):
        return {'text': ''.join([piece async for piece in pieces(question, module.sent)])}

    @routes.post('/stream')
    async def stream(question: Question):
        return StreamingResponse(pieces(question, module.sent), media_type='text/event-stream',
                                 headers={'x-id': '7'})

    @routes.get('/plain')
    def plain():
        return {'ok': True}

    module.whole, module.stream = whole, stream
    return module


@pytest.fixture(params=['application', 'router'])
def served(request):
    """The module, and a function that sends a request to its application."""
    routes = FastAPI() if request.param == 'application' else APIRouter()
    module = server(routes)
    answer_unreadable_images(module)
    app = routes
    if request.param == 'router':
        app = FastAPI()
        app.include_router(routes)

    def send(method, path, **question):
        async def run():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url='http://x') as client:
                body = dict(json=question) if method == 'POST' else {}
                return await client.request(method, path, **body)

        return asyncio.run(run())

    return module, send


@pytest.mark.parametrize('path', ['/whole', '/stream'])
def test_an_unreadable_image_is_refused_before_the_first_piece(served, path):
    answer = served[1]('POST', path, fail_at=0)
    assert answer.status_code == 400
    assert answer.json() == dict(object='error', message='no such file', code=400)


def test_answers_pass(served):
    _, send = served
    assert send('POST', '/whole').json() == {'text': '0;1;'}
    stream = send('POST', '/stream')
    assert (stream.status_code, stream.text, stream.headers['x-id']) == (200, '0;1;', '7')
    assert stream.headers['content-type'] == 'text/event-stream; charset=utf-8'
    assert send('POST', '/stream', pieces=0).text == ''
    assert send('GET', '/plain').json() == {'ok': True}
    assert send('POST', '/whole', pieces='many').status_code == 422, 'the body is still checked'


def test_pieces_of_a_stream_are_sent_as_they_come():
    module = server(FastAPI())
    answer_unreadable_images(module)
    seen = []

    async def run():
        async def receive():
            if not seen:
                seen.append('request')
                return dict(type='http.request', body=b'{"pieces": 3}', more_body=False)
            await asyncio.sleep(60)

        async def send(message):
            seen.append((message['type'], list(module.sent)))

        scope = dict(type='http', method='POST', path='/stream', headers=[], query_string=b'')
        await asyncio.wait_for(module.app(scope, receive, send), 10)

    asyncio.run(run())
    assert seen[1:] == [('http.response.start', [0]), ('http.response.body', [0]),
                        ('http.response.body', [0, 1]), ('http.response.body', [0, 1, 2]),
                        ('http.response.body', [0, 1, 2])]


def test_an_endpoint_that_is_patched_later_is_called(served):
    module, send = served

    async def patched(question):
        return {'text': 'patched'}

    module.whole = patched
    assert send('POST', '/whole').json() == {'text': 'patched'}
