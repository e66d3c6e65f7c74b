"""The bytes of an image: from a file, a data URL or an http(s) URL."""
import base64
import binascii
import os
from functools import cached_property
from urllib.parse import unquote_to_bytes

import httpx

from .errors import ImageError
from .item import Item

MAX_BYTES = 256 << 20
_FETCH_TIMEOUT = 30.0  # seconds for connecting, and between two blocks


class Loader:
    """Loads images; connections are shared between images and threads."""

    @cached_property
    def _client(self) -> httpx.Client:
        return httpx.Client(timeout=_FETCH_TIMEOUT, follow_redirects=True)

    def load(self, item: Item) -> bytes:
        """The bytes of an item's image; blocks, so it belongs on a worker thread.

        Raises:
            ImageError: they cannot be read, are none, or are more than `MAX_BYTES`.
        """
        if item.is_remote:
            data = _fetch(item.image, self._client)
        else:
            data = _decode_data_url(item.image) if item.is_inline else _read_file(item.image)
        if not data:
            raise ImageError('the file is empty (0 bytes)')
        return data

    def close(self) -> None:
        # not before the first http(s) image: a client takes 30 ms to make
        if '_client' in vars(self):
            self._client.close()


def _read_file(path: str) -> bytes:
    try:
        with open(path, 'rb') as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise ImageError(_too_large(size))
            return file.read()
    except OSError as error:
        raise ImageError(f'cannot read the file: {error.strerror}') from error
    except ValueError as error:  # no file can have this name: it holds a NUL or half a surrogate
        raise ImageError(f'cannot read the file: {error}') from error


def _decode_data_url(url: str) -> bytes:
    """https://www.rfc-editor.org/rfc/rfc2397"""
    head, comma, payload = url.partition(',')
    if not comma:
        raise ImageError(f'a data URL without data: {head[:40]!r}')
    if not head.endswith(';base64'):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ImageError(f'the data URL is not base64: {error}') from error


def _fetch(url: str, client: httpx.Client) -> bytes:
    try:
        with client.stream('GET', url) as response:
            if not response.is_success:
                raise ImageError(f'the URL answered {response.status_code} '
                                 f'{response.reason_phrase}'.rstrip())
            data = bytearray()
            for block in response.iter_bytes():
                data += block
                if len(data) > MAX_BYTES:
                    raise ImageError(_too_large(len(data)))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ImageError(f'cannot fetch the URL: {error or type(error).__name__}') from error
    return bytes(data)


def _too_large(size: int) -> str:
    return f'{size / 2**20:.0f} MiB or more; expected an image of {MAX_BYTES >> 20} MiB at most'
