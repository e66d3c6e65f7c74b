"""A small HTTP server that speaks the part of LMDeploy's OpenAI schema that classify uses."""
import base64
import hashlib
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple

Reply = Tuple[int, Dict[str, Any]]


class ChatServer:
    """Serves one model; answers by the image's bytes as `FakeEngine` does.

    Args:
        models: names that it serves; None for a server that is not LMDeploy's.
        after_top_k: whether log-probabilities are reported as TurboMind does.
        pieces: how the tokenizer's vocabulary spells 是 and 否.
        reply: called with each chat request's body; what it returns (status, body) is sent in the
            answer's place, and where it returns None the answer is.

    Attributes:
        url: its address.
        requests: bodies of the chat requests.
    """

    def __init__(self,
                 models=('fake', ),
                 api_key: Optional[str] = None,
                 after_top_k: bool = False,
                 pieces=('是', '否'),
                 reply: Callable[[Dict[str, Any]], Optional[Reply]] = lambda body: None) -> None:
        self.requests: List[Dict[str, Any]] = []
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def do_GET(self) -> None:
                if models is None:
                    self.send(404, {'detail': 'Not Found'})
                elif self.allowed():
                    self.send(200, {'object': 'list', 'data': [{'id': name} for name in models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
                if self.allowed():
                    server.requests.append(body)
                    self.send(*(reply(body) or (200, answer(body, after_top_k, pieces))))

            def allowed(self) -> bool:
                wanted = f'Bearer {api_key}' if api_key else None
                if self.headers.get('Authorization') != wanted:
                    self.send(401, {'detail': {'error': {'message': 'no'}}})
                    return False
                return True

            def send(self, status: int, body: Dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None:
                pass  # a client that goes away is no error here

        self._server = Server(('127.0.0.1', 0), Handler)
        self.url = f'http://127.0.0.1:{self._server.server_address[1]}'
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01, ))

    def __enter__(self) -> 'ChatServer':
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def answer(body: Dict[str, Any], after_top_k: bool, pieces=('是', '否')) -> Dict[str, Any]:
    """A chat completion in LMDeploy's schema."""
    image = next(part['image_url'] for part in body['messages'][-1]['content']
                 if part['type'] == 'image_url')
    data = base64.b64decode(image['url'].partition(',')[2])
    share = (1 + hashlib.blake2b(data).digest()[0]) / 258
    ranked = sorted([(share, pieces[0]), (1 - share, pieces[1]), (1e-9, 'x')], reverse=True)
    if after_top_k:
        ranked = ranked[:body['top_k']]
    tokens = [{
        'token': name,
        'bytes': list(name.encode()),
        'logprob': math.log(probability)
    } for probability, name in ranked[:body['top_logprobs']]]
    first = {**tokens[0], 'top_logprobs': tokens[1:]}
    return {
        'id':
        '1',
        'object':
        'chat.completion',
        'model':
        body['model'],
        'choices': [{
            'index': 0,
            'finish_reason': 'stop',
            'logprobs': {
                'content': [first]
            },
            'message': {
                'role': 'assistant',
                'content': '是' if share > 0.5 else '否'
            }
        }],
        'usage': {
            'prompt_tokens': 70,
            'completion_tokens': 1,
            'total_tokens': 71
        }
    }
