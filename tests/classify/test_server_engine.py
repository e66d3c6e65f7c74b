"""Against a server: the same rows, patience where it pays, a clear word where it does not."""
import base64
import io

import pytest
from PIL import Image

from lmdeploy_ext.classify import server_engine
from lmdeploy_ext.classify.errors import EngineError
from lmdeploy_ext.classify.files import FolderSource
from lmdeploy_ext.classify.item import Item
from lmdeploy_ext.classify.result_file import ResultFile, read_rows
from lmdeploy_ext.classify.runner import RunSettings, run
from lmdeploy_ext.classify.server_engine import ServerEngine, ServerSettings, served_model

from .chat_server import ChatServer, answer
from .fakes import IDENTITY, YES_NO, FakeEngine, jpeg, without_times, write_images
from .test_runner import ListSource

SETTINGS = RunSettings(prompt='?')


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(server_engine, '_FIRST_DELAY', 0.002)


def classify(source, path, engine, settings=SETTINGS):
    with ResultFile(path, IDENTITY) as result, engine:
        result.begin(IDENTITY)
        run(source, engine, YES_NO, result, settings)
    return list(read_rows(path))


def ask(server, source, tmp_path, settings=SETTINGS, **options):
    engine = ServerEngine(ServerSettings(server.url, 'fake', **{'concurrency': 4, **options}))
    return classify(source, tmp_path / 'out.jsonl', engine, settings)


def test_a_server_gives_the_same_rows_as_an_engine_in_this_process(tmp_path):
    write_images(tmp_path / 'in', 12)
    (tmp_path / 'in' / 'cut.jpg').write_bytes(jpeg(1, 64)[:-30])
    source = FolderSource(tmp_path / 'in')
    classify(source, tmp_path / 'own.jsonl', FakeEngine())
    with ChatServer() as server:
        ask(server, source, tmp_path)
    assert without_times(tmp_path / 'out.jsonl') == without_times(tmp_path / 'own.jsonl')
    assert server.connections <= 5


def test_what_is_sent_is_the_file_itself_and_a_greedy_request(tmp_path):
    data = jpeg(3)
    (tmp_path / 'a.jpg').write_bytes(data)
    item = Item('a',
                str(tmp_path / 'a.jpg'),
                prompt='A bed?',
                system='Be brief.',
                options={'detail': 'low'})
    with ChatServer(api_key='secret') as server:
        ask(server,
            ListSource([item]),
            tmp_path,
            RunSettings(max_new_tokens=3, max_dynamic_patch=6),
            api_key='secret')
    request, = server.requests
    assert request['messages'] == [{
        'role': 'system',
        'content': 'Be brief.'
    }, {
        'role':
        'user',
        'content': [{
            'type': 'text',
            'text': 'A bed?'
        }, {
            'type': 'image_url',
            'image_url': {
                'url': 'data:image/jpeg;base64,' + base64.b64encode(data).decode(),
                'detail': 'low',
                'max_dynamic_patch': 6
            }
        }]
    }]
    assert (request['model'], request['max_tokens'], request['top_k']) == ('fake', 3, 1)
    assert request['logprobs'] is True and request['top_logprobs'] == 64


def test_turbomind_is_asked_for_more_candidates_once_it_is_recognised(tmp_path):
    write_images(tmp_path / 'in', 6)
    source = FolderSource(tmp_path / 'in')
    classify(source, tmp_path / 'own.jsonl', FakeEngine())
    with ChatServer(after_top_k=True) as server:
        ask(server, source, tmp_path, concurrency=1)
    assert [request['top_k'] for request in server.requests] == [1] + [64] * 6
    assert without_times(tmp_path / 'out.jsonl') == without_times(tmp_path / 'own.jsonl')


@pytest.mark.parametrize('status', [429, 500, 503])
def test_a_passing_failure_is_tried_again(tmp_path, status):
    write_images(tmp_path / 'in', 5)
    failures = iter([True, False, True, True] + [False] * 20)
    with ChatServer(reply=lambda body: (status, {'message': 'busy'}) if next(failures) else None) \
            as server:
        rows = ask(server, FolderSource(tmp_path / 'in'), tmp_path)
    assert [row.error for row in rows] == [None] * 5
    assert len(server.requests) == 8


@pytest.mark.parametrize('status, body, message', [
    (500, {
        'detail': 'oops'
    }, 'the server answered 500: oops'),
    (400, {
        'object': 'error',
        'message': 'too long'
    }, 'the server answered 400: too long'),
    (200, {
        'choices': [{
            'finish_reason': 'error'
        }],
        'usage': {
            'completion_tokens': 0
        }
    }, 'the engine reported an internal error'),
    (200, {
        'choices': [{
            'finish_reason': 'length'
        }],
        'usage': {
            'completion_tokens': 0
        }
    }, 'more tokens than a session may'),
    (200, {
        'choices': [{
            'finish_reason': 'stop'
        }],
        'usage': {
            'completion_tokens': 0
        }
    }, 'ended its answer before the first token'),
])
def test_a_request_that_fails_is_an_error_row(tmp_path, status, body, message):
    write_images(tmp_path / 'in', 3)
    bad = base64.b64encode(jpeg(1)).decode()

    def reply(request):
        url = request['messages'][-1]['content'][1]['image_url']['url']
        return (status, body) if url.endswith(bad) else None

    with ChatServer(reply=reply) as server:
        rows = ask(server, FolderSource(tmp_path / 'in'), tmp_path)
    assert [row.error is None for row in rows] == [True, False, True]
    assert message in rows[1].error


@pytest.mark.parametrize('change, message', [
    (lambda body: body['choices'][0].update(logprobs=None), 'gives no log-probabilities'),
    (lambda body: body.pop('usage'), "no chat completion .no 'usage'."),
    (lambda body: body['choices'].clear(), 'no chat completion'),
])
def test_a_server_that_cannot_serve_ends_the_run(tmp_path, change, message):
    write_images(tmp_path / 'in', 3)

    def reply(request):
        body = answer(request, False)
        change(body)
        return 200, body

    with ChatServer(reply=reply) as server, pytest.raises(EngineError, match=message):
        ask(server, FolderSource(tmp_path / 'in'), tmp_path)


def test_a_server_that_goes_away_ends_the_run(tmp_path):
    write_images(tmp_path / 'in', 3)
    with ChatServer() as server:
        pass
    with pytest.raises(EngineError, match='cannot reach http://127.0.0.1.*lmdeploy serve'):
        ask(server, FolderSource(tmp_path / 'in'), tmp_path)


def test_the_served_model_is_looked_up():
    with ChatServer(models=('a', 'b')) as server:
        assert served_model(server.url) == served_model(server.url + '/v1/') == 'a'
        assert served_model(server.url, name='b') == 'b'
        with pytest.raises(EngineError, match="does not serve 'c' but a, b"):
            served_model(server.url, name='c')
    with ChatServer(models=()) as server, pytest.raises(EngineError, match='serves no model'):
        served_model(server.url)
    with pytest.raises(EngineError, match='cannot reach'):
        served_model(server.url)
    with pytest.raises(EngineError, match='cannot reach nonsense'):
        served_model('nonsense')


def test_a_wrong_key_is_said(tmp_path):
    write_images(tmp_path / 'in', 1)
    with ChatServer(api_key='secret') as server:
        with pytest.raises(EngineError, match='refuses the API key .401.; set the right one'):
            served_model(server.url, api_key='wrong')
        with pytest.raises(EngineError, match='refuses the API key'):
            ask(server, FolderSource(tmp_path / 'in'), tmp_path)
        assert served_model(server.url, api_key='secret') == 'fake'


def test_a_url_of_something_else_is_said():
    with ChatServer(models=None) as server:
        with pytest.raises(EngineError, match='answered 404 to /v1/models, not a list of models'):
            served_model(server.url)


def test_images_of_urls_are_fetched_and_checked(tmp_path, monkeypatch):
    """The server of images here is the chat server: its GET answers JSON, which is no image."""
    monkeypatch.setenv('LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES', '1')
    buffer = io.BytesIO()
    Image.new('RGB', (8, 8)).save(buffer, 'PNG')
    url = 'data:image/png;base64,' + base64.b64encode(buffer.getvalue()).decode()
    with ChatServer() as server:
        items = [Item('a', server.url + '/x.jpg'), Item('b', url)]
        rows = ask(server, ListSource(items), tmp_path)
    assert 'no image' in rows[0].error and rows[1].error is None
    assert rows[1].path == 'data:image/png;base64'
