"""Images in an OpenAI batch file: one chat completion request a line.

https://platform.openai.com/docs/api-reference/batch/request-input
"""
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union
from urllib.parse import unquote, urlparse

from .errors import SourceError
from .item import Item
from .manifest import read_records


@dataclass(frozen=True)
class BatchSource:
    """Requests with `custom_id` and `body.messages`: an optional system message and one user
    message with exactly one image (http(s), data or file URL, or a path relative to the file).

    The request's own text is the prompt; a prompt of the run replaces it. `model`, `max_tokens`
    and the sampling settings of the body are ignored, since one run asks every image alike.
    """
    file: Path

    @property
    def name(self) -> str:
        return str(self.file)

    def __iter__(self) -> Iterator[Item]:
        for line, record in read_records(self.file):
            try:
                yield self._item(record)
            except _BadRequest as error:
                raise SourceError(f'{self.file}, line {line}: {error}') from error

    def _item(self, record: Dict[str, Any]) -> Item:
        id_, body = record.get('custom_id'), record.get('body')
        if not isinstance(id_, str) or not id_:
            raise _BadRequest('no custom_id; expected a text that names the request')
        messages = body.get('messages') if isinstance(body, dict) else None
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise _BadRequest('no body.messages; expected a list of chat messages')
        user, system = _roles(messages)
        texts, images = _parts(user.get('content'))
        if len(images) != 1:
            raise _BadRequest(f'{len(images)} images in {id_!r}; expected exactly one')
        url, options = images[0]
        return Item(id=id_,
                    image=self._locate(url),
                    prompt='\n'.join(texts) or None,
                    system=system,
                    options=options)

    def _locate(self, url: str) -> str:
        if url.startswith('file://'):
            return unquote(urlparse(url).path)
        if url.startswith(('http://', 'https://', 'data:')):
            return url
        return str(self.file.parent / url)


class _BadRequest(ValueError):
    """What is wrong with one line."""


def is_batch_record(record: Dict[str, Any]) -> bool:
    """Whether a JSONL row is a batch request, not a row of a manifest."""
    return 'custom_id' in record


def _roles(messages: List[Dict[str, Any]]) -> Tuple[Dict[str, Any], Optional[str]]:
    """The user message, and the system message's text."""
    roles = [message.get('role') for message in messages]
    if roles not in (['user'], ['system', 'user']):
        raise _BadRequest(f'messages of the roles {roles}; expected one user message, '
                          f'a system message before it at most')
    if roles == ['user']:
        return messages[0], None
    texts, images = _parts(messages[0].get('content'))
    if images:
        raise _BadRequest('an image in the system message; expected it in the user message')
    return messages[1], '\n'.join(texts)


def _parts(content: Any) -> Tuple[List[str], List[Tuple[str, Dict[str, Union[str, int]]]]]:
    """Texts, and images as (URL, options), of a message's content."""
    if isinstance(content, str):
        return [content], []
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise _BadRequest('a message without content; expected text or a list of parts')
    texts, images = [], []
    for part in content:
        if part.get('type') == 'text' and isinstance(part.get('text'), str):
            texts.append(part['text'])
        elif part.get('type') == 'image_url':
            images.append(_image(part.get('image_url')))
        else:
            raise _BadRequest(f'a part of type {part.get("type")!r}; expected text or image_url')
    return texts, images


def _image(value: Any) -> Tuple[str, Dict[str, Union[str, int]]]:
    """URL and options of an image part.

    Raises:
        _BadRequest: an option is unknown or of the wrong type. It must not reach the engine: one
            image that fails in LMDeploy's encoder hangs all later ones.
    """
    fields = {'url': value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not isinstance(fields.get('url'), str) or not fields['url']:
        raise _BadRequest('an image without url; expected image_url {"url": …}')
    options = {name: option for name, option in fields.items() if name != 'url'}
    for name, kind in {'detail': str, 'max_dynamic_patch': int}.items():
        if name in options and (not isinstance(options[name], kind) or options[name] is True):
            raise _BadRequest(f'{name} is {options[name]!r}; expected {kind.__name__}')
    unknown = sorted(set(options) - {'detail', 'max_dynamic_patch'})
    if unknown:
        raise _BadRequest(f'unknown image option {unknown[0]!r}; expected detail or '
                          f'max_dynamic_patch')
    if options.get('max_dynamic_patch', 1) < 1:
        raise _BadRequest(
            f'max_dynamic_patch is {options["max_dynamic_patch"]}; expected 1 or more')
    return fields['url'], options
