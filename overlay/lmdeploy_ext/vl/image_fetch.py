"""Fetching an image from an http(s) URL, within its limits.

One connection an image, straight to the host: proxies are not used, since behind one nobody knows
which address is connected to.
"""
import base64
import contextlib
import functools
import ssl
import time
from typing import Any, Iterable, Optional, Tuple
from urllib.parse import unquote

import httpcore
import httpx

from .. import __version__
from . import image_address
from .image_errors import (AddressRefused, BadImageReference, ImageNotFetched, ImageTooLarge,
                           shortened)
from .image_limits import ImageLimits

_MAX_REDIRECTS = 5
_MAX_PORT = 65_535
# Seconds. A socket's own limit is some 24 days: more is an OverflowError.
_LONGEST_STEP = 86_400.0
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {'User-Agent': f'lmdeploy-ext/{__version__}', 'Accept': 'image/*',
            'Accept-Encoding': 'identity', 'Connection': 'close'}


def fetch(url: str, limits: ImageLimits) -> bytes:
    """The content of a URL.

    Raises:
        BadImageReference: the URL is malformed.
        AddressRefused: it leads, or redirects, to where the limits do not allow it to.
        ImageNotFetched: no answer with status 200 and the whole content within
            `limits.url_seconds`, counted from the call.
        ImageTooLarge: the content has more than `limits.max_bytes`.
    """
    deadline = Deadline(limits.url_seconds)
    target = _parsed(url)
    for _ in range(_MAX_REDIRECTS + 1):
        location, content = _get(target, limits, deadline)
        if location is None:
            return content
        target = _redirected(target, location, limits)
    raise ImageNotFetched(f'{shown(target)} was reached by more than {_MAX_REDIRECTS} redirects; '
                          'expected an image; give the URL that they lead to')


def shown(url: httpx.URL) -> str:
    """A URL as a message shows it: without credentials and query, which may hold secrets."""
    return shortened(str(url.copy_with(username=None, password=None, query=None, fragment=None)))


class Deadline:
    """A point in time that all steps of one fetch share."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left.

        Raises:
            httpcore.TimeoutException: none are.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise httpcore.TimeoutException
        return min(left, _LONGEST_STEP)


class _TimedStream(httpcore.NetworkStream):
    """A connection whose every step has the time that is left of the whole.

    httpcore's own time limits begin anew with each byte that arrives.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline):
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: Optional[float] = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left())

    def write(self, buffer: bytes, timeout: Optional[float] = None) -> None:
        self._stream.write(buffer, self._deadline.left())

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: Optional[str] = None,
                  timeout: Optional[float] = None) -> httpcore.NetworkStream:
        encrypted = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left())
        return _TimedStream(encrypted, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CheckedNetwork(httpcore.NetworkBackend):
    """Connects to an address that was checked; Host header and TLS name stay the URL's."""

    def __init__(self, limits: ImageLimits, deadline: Deadline):
        self._limits = limits
        self._deadline = deadline
        self._network = httpcore.SyncBackend()

    def connect_tcp(self, host: str, port: int, timeout: Optional[float] = None,
                    local_address: Optional[str] = None,
                    socket_options: Optional[Iterable[Any]] = None) -> httpcore.NetworkStream:
        addresses = image_address.resolve(host, port, self._deadline.left(),
                                          self._limits.private_addresses)
        for others, address in zip(range(len(addresses) - 1, 0, -1), addresses):
            # one that does not answer leaves time for the others
            seconds = self._deadline.left() / (others + 1)
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return self._connect(address, port, seconds)
        return self._connect(addresses[-1], port, self._deadline.left())

    def _connect(self, address: str, port: int, seconds: float) -> httpcore.NetworkStream:
        stream = self._network.connect_tcp(address, port, seconds)
        return _TimedStream(stream, self._deadline)


@functools.lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    # tens of milliseconds, to read the certificates
    return httpx.create_ssl_context()


def _parsed(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        of_the_web = _is_of_the_web(parsed)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise BadImageReference('found a malformed URL; expected http(s)://host/path; '
                                'correct it') from error
    if not of_the_web:
        raise BadImageReference(f'found {shown(parsed)}; expected http(s)://host/path; correct '
                                'the URL')
    return parsed


def _is_of_the_web(url: httpx.URL) -> bool:
    """Raises UnicodeError where the host begins as an international name (`xn--`) and is none:
    httpx decodes it when it is asked for it."""
    return (url.scheme in ('http', 'https') and bool(url.host)
            and (url.port is None or 0 < url.port <= _MAX_PORT))


def _redirected(url: httpx.URL, location: str, limits: ImageLimits) -> httpx.URL:
    """Where a redirect of `url` leads, if it may be followed."""
    try:
        target = url.join(location)
        of_the_web = _is_of_the_web(target)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ImageNotFetched(f'{shown(url)} redirects to a malformed URL; expected an image; '
                              'give another URL') from error
    if not of_the_web or (url.scheme, target.scheme) == ('https', 'http'):
        raise AddressRefused(f'{shown(url)} redirects to {shown(target)}; expected {url.scheme}; '
                             'give the URL of the image itself')
    if target.host != url.host and not limits.other_hosts:
        raise AddressRefused(
            f'{shown(url)} redirects to another host, {target.host}; expected an image or the '
            'same host; give that URL, or allow it by LMDEPLOY_EXT_IMAGE_OTHER_HOSTS=1')
    return target


def _get(url: httpx.URL, limits: ImageLimits,
         deadline: Deadline) -> Tuple[Optional[str], bytes]:
    """One request: where it redirects to, or the content."""
    address = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port,
                           target=url.raw_path)
    headers = {'Host': url.netloc.decode('ascii'), **_HEADERS, **_authorization(url)}
    try:
        with httpcore.ConnectionPool(ssl_context=_ssl_context(),
                                     network_backend=_CheckedNetwork(limits, deadline)) as pool:
            with pool.stream('GET', address, headers=headers) as response:
                return _answer(url, response, limits)
    except httpcore.TimeoutException as error:
        raise ImageNotFetched(
            f'{shown(url)} was not there after {deadline.seconds:g} s; expected the whole image; '
            'try again, or raise LMDEPLOY_EXT_IMAGE_URL_SECONDS') from error
    except httpcore.NetworkError as error:
        raise ImageNotFetched(f'{shown(url)} cannot be reached ({error}); expected an image; '
                              'check the URL, or try again') from error
    except httpcore.ProtocolError as error:
        # whose text quotes the answer
        raise ImageNotFetched(f'{shown(url)} gave no complete HTTP answer; expected an image; '
                              'check the URL, or try again') from error


def _answer(url: httpx.URL, response: httpcore.Response,
            limits: ImageLimits) -> Tuple[Optional[str], bytes]:
    headers = {name.lower(): value.decode('latin-1') for name, value in response.headers}
    if response.status in _REDIRECTS and b'location' in headers:
        return headers[b'location'], b''
    if response.status != 200:
        raise ImageNotFetched(f'{shown(url)} answered with status {response.status}; expected '
                              '200; check the URL')
    if headers.get(b'content-length', '').isdecimal():
        limits.check_bytes(int(headers[b'content-length']))
    content = bytearray()
    for chunk in response.iter_stream():
        content += chunk
        if len(content) > limits.max_bytes:
            raise ImageTooLarge(
                f'{shown(url)} has more than {limits.max_bytes} bytes; expected no more; give a '
                'smaller image, or raise LMDEPLOY_EXT_IMAGE_MAX_BYTES')
    return None, bytes(content)


def _authorization(url: httpx.URL) -> dict:
    """Basic authentication with the credentials that stand in the URL (RFC 7617)."""
    if not url.userinfo:
        return {}
    credentials = f'{unquote(url.username)}:{unquote(url.password)}'.encode()
    return {'Authorization': 'Basic ' + base64.b64encode(credentials).decode('ascii')}
