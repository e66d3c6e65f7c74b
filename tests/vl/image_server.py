"""A web server on 127.0.0.1 that behaves as badly as a test asks it to."""
import contextlib
import http.server
import threading
from typing import Callable, Dict, Iterator, List

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class ImageServer(http.server.ThreadingHTTPServer):
    """Answers each path by its function; `requests` has the headers of what was asked.

    `stopping` is set when the test is over, so that no answer outlives it.
    """
    daemon_threads = True

    def __init__(self, answers: Dict[str, Answer]):
        super().__init__(('127.0.0.1', 0), _Handler)
        self.answers = answers
        self.requests: List[dict] = []
        self.stopping = threading.Event()

    def url(self, path: str, host: str = '127.0.0.1', credentials: str = '') -> str:
        return f'http://{credentials}{host}:{self.server_port}{path}'


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append({'path': self.path, **self.headers})
        with contextlib.suppress(ConnectionError):
            self.server.answers[self.path.partition('?')[0]](self)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(answers: Dict[str, Answer]) -> Iterator[ImageServer]:
    server = ImageServer(answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def content(data: bytes, status: int = 200, length: bool = True) -> Answer:
    """Answers with data; without its length, the closed connection says where it ends."""
    def answer(handler):
        handler.send_response(status)
        if length:
            handler.send_header('Content-Length', str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
    return answer


def redirect(location: str, status: int = 302) -> Answer:
    def answer(handler):
        handler.send_response(status)
        handler.send_header('Location', location)
        handler.send_header('Content-Length', '0')
        handler.end_headers()
    return answer


def silence(handler) -> None:
    """Never answers."""
    handler.server.stopping.wait(20)


def dripping(before: bytes, each: bytes = b'\xff') -> Answer:
    """Sends `before` at once, and `each` every few hundredths of a second."""
    def answer(handler):
        handler.wfile.write(before)
        while not handler.server.stopping.wait(0.05):
            handler.wfile.write(each)
    return answer
