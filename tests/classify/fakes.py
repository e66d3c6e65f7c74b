"""An engine, a tokenizer and images that need no model."""
import asyncio
import hashlib
import io
import math
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from PIL import Image

from lmdeploy_ext.classify.decode import Needs
from lmdeploy_ext.classify.engine import Answer, LoopThread, Question
from lmdeploy_ext.classify.labels import Label, Labels
from lmdeploy_ext.classify.row import Row

YES_NO = Labels((Label('是', 11, b'\xe6\x98\xaf', 1), Label('否', 12, b'\xe5\x90\xa6', 1)))
IDENTITY = {
    'model': {
        'path': 'm',
        'fingerprint': 'f'
    },
    'prompt': 'p',
    'labels': ['是', '否'],
    'settings': {
        'max_new_tokens': 1
    }
}


class FakeTokenizer:
    """One token a character; its id is the code point."""

    def answer_tokens(self, answer: str) -> List[int]:
        return [ord(character) for character in answer]

    def piece(self, token: int) -> bytes:
        return chr(token).encode()


class FakeEngine:
    """Answers by the image's bytes: always the same, and about half 是.

    Args:
        delay: seconds that an answer takes, by question; an exception raised here is the engine's.
        needs: as an engine in this process, or a client of a server.
    """

    def __init__(self,
                 concurrency: int = 4,
                 delay: Optional[Callable[[Question], float]] = None,
                 needs: Needs = Needs.PIXELS) -> None:
        self.concurrency = concurrency
        self.needs = needs
        self.questions: List[Question] = []
        self.in_flight = self.most_in_flight = 0
        self._delay = delay or (lambda question: 0.0)

    def __enter__(self) -> 'FakeEngine':
        self.loop = LoopThread('fake')
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.loop.close()

    async def answer(self, question: Question) -> Answer:
        self.questions.append(question)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self._delay(question))
        finally:
            self.in_flight -= 1
        share = (1 + hashlib.blake2b(question.picture.data).digest()[0]) / 258
        logprobs = {11: math.log(share), 12: math.log(1 - share), 13: -20.0}
        return Answer('是' if share > 0.5 else '否', logprobs, 70, 1)

    def settings(self) -> Dict[str, Any]:
        return {'engine': 'fake'}

    def details(self) -> Dict[str, Any]:
        return {}


def jpeg(color: int, size: int = 8) -> bytes:
    """A small JPEG; different for each of 16 million colors, if hardly to the eye."""
    buffer = io.BytesIO()
    rgb = (color & 255, color >> 8 & 255, color >> 16 & 255)
    Image.new('RGB', (size, size), rgb).save(buffer, 'JPEG', comment=str(color).encode())
    return buffer.getvalue()


def write_images(folder: Path, count: int) -> List[Path]:
    """`count` different images."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f'{number:05}.jpg' for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(jpeg(number))
    return paths


def row(id_: str = 'a', error: Optional[str] = None, text: str = '是') -> Row:
    """A row that was answered, or one that failed."""
    if error is not None:
        return Row(id_, id_, None, None, None, None, None, 0.25, error)
    return Row(id_, id_, '是', {'是': 0.75, '否': 0.25}, text, 70, 1, 0.25, None)


def without_times(path: Path) -> List[str]:
    """A result file's rows, without what differs from run to run."""
    import json
    lines = path.read_bytes().split(b'\n')
    assert lines[-1] == b'', 'the last line is not whole'
    rows = [json.loads(line) for line in lines[1:-1]]
    for fields in rows:
        assert fields.pop('seconds') >= 0
    return [json.dumps(fields, ensure_ascii=False) for fields in rows]


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Poll until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(0.005)
