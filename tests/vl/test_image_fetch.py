"""URLs: what is fetched, and what is refused in time and with the reason."""
import ipaddress
import socket
import ssl
import time

import pytest

from lmdeploy_ext.vl import image_address, image_fetch
from lmdeploy_ext.vl.image_errors import (AddressRefused, BadImageReference, ImageNotFetched,
                                          ImageTooLarge)
from lmdeploy_ext.vl.image_fetch import fetch
from lmdeploy_ext.vl.image_limits import ImageLimits

from .image_files import jpeg
from .image_server import content, dripping, redirect, serving, silence

DATA = jpeg(64, 48)
LOCAL = ImageLimits(private_addresses=True, url_seconds=5)
HURRIED = ImageLimits(private_addresses=True, url_seconds=0.4)


@pytest.fixture(scope='module')
def server():
    answers = {
        '/image.jpg': content(DATA),
        '/no-length.jpg': content(DATA, length=False),
        '/missing.jpg': content(b'secret page', status=404),
        '/silent.jpg': silence,
        '/dripping-body.jpg': dripping(b'HTTP/1.1 200 OK\r\n\r\n'),
        '/dripping-head.jpg': dripping(b'HTTP/1.1 200 OK\r\nX-Header: ', b'x'),
        '/endless.jpg': dripping(b'HTTP/1.1 200 OK\r\n\r\n', bytes(4096)),
        '/promising.jpg': dripping(b'HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n'),
        '/short.jpg': lambda handler: handler.wfile.write(
            b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n' + DATA[:100]),
        '/no-http.jpg': lambda handler: handler.wfile.write(b'SSH-2.0-OpenSSH_9.6\r\n'),
        '/same-host': redirect('/image.jpg', 301),
        '/loop': redirect('/loop', 307),
        '/to-file': redirect('file:///etc/passwd'),
        '/to-nonsense': redirect('http://host:port/'),
        '/to-private': redirect('http://10.1.2.3/image.jpg'),
    }
    with serving(answers) as running:
        answers['/other-host'] = redirect(running.url('/image.jpg', host='localhost'))
        yield running


@pytest.mark.parametrize('path', ['/image.jpg', '/no-length.jpg', '/same-host',
                                  '/image.jpg?size=large#top'])
def test_the_content_comes_as_it_is(server, path):
    assert fetch(server.url(path), LOCAL) == DATA


def test_the_server_is_told_who_asks_and_for_which_host(server):
    fetch(server.url('/image.jpg?a=1', credentials='me:p%40ss@'), LOCAL)
    asked = server.requests[-1]
    assert asked['path'] == '/image.jpg?a=1'
    assert asked['Host'] == f'127.0.0.1:{server.server_port}'
    assert asked['User-Agent'].startswith('lmdeploy-ext/')
    assert asked['Authorization'] == 'Basic bWU6cEBzcw=='


def test_another_status_is_named_and_its_page_not_quoted(server):
    with pytest.raises(ImageNotFetched, match='/missing.jpg.* status 404; expected 200') as caught:
        fetch(server.url('/missing.jpg?token=t0k3n', credentials='me:s3cret@'), LOCAL)
    for secret in ('secret', 's3cret', 't0k3n', 'me:'):
        assert secret not in str(caught.value)


@pytest.mark.parametrize('path', ['/silent.jpg', '/dripping-body.jpg', '/dripping-head.jpg',
                                  '/promising.jpg'])
def test_the_time_is_over_for_the_whole_not_for_each_byte(server, path):
    start = time.monotonic()
    with pytest.raises(ImageNotFetched, match='not there after 0.4 s; .*'
                                              'LMDEPLOY_EXT_IMAGE_URL_SECONDS'):
        fetch(server.url(path), HURRIED)
    assert 0.3 < time.monotonic() - start < 2


def test_a_host_that_accepts_no_connection_is_waited_for_no_longer():
    with socket.create_server(('127.0.0.1', 0), backlog=0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ImageNotFetched, match='0.4 s'):
            fetch(f'http://127.0.0.1:{port}/image.jpg', HURRIED)
    with pytest.raises(ImageNotFetched, match='cannot be reached .*refused'):
        fetch(f'http://127.0.0.1:{port}/image.jpg', HURRIED)


def test_a_look_up_that_hangs_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *args, **options: time.sleep(1.5))
    start = time.monotonic()
    with pytest.raises(ImageNotFetched, match='look-up of host slow.test took too long'):
        fetch('http://slow.test/image.jpg', HURRIED)
    assert time.monotonic() - start < 1.2


def test_an_unknown_host_is_said_to_be_unknown(monkeypatch):
    def unknown(*args, **options):
        raise socket.gaierror(-2, 'Name or service not known')
    monkeypatch.setattr(socket, 'getaddrinfo', unknown)
    with pytest.raises(ImageNotFetched, match='no address was found for host nobody.test'):
        fetch('http://nobody.test/image.jpg', LOCAL)


@pytest.mark.parametrize('path', ['/image.jpg', '/no-length.jpg', '/endless.jpg',
                                  '/promising.jpg'])
def test_more_bytes_than_allowed_are_not_read(server, path):
    with pytest.raises(ImageTooLarge, match='LMDEPLOY_EXT_IMAGE_MAX_BYTES'):
        fetch(server.url(path), ImageLimits(private_addresses=True, max_bytes=len(DATA) - 1))


@pytest.mark.parametrize('path', ['/short.jpg', '/no-http.jpg'])
def test_half_an_answer_is_none(server, path):
    with pytest.raises(ImageNotFetched, match='no complete HTTP answer'):
        fetch(server.url(path), LOCAL)


def test_redirects_stay_on_their_host_unless_allowed(server):
    with pytest.raises(AddressRefused, match='another host, localhost; .*'
                                             'LMDEPLOY_EXT_IMAGE_OTHER_HOSTS=1'):
        fetch(server.url('/other-host'), LOCAL)
    allowed = ImageLimits(private_addresses=True, other_hosts=True)
    assert fetch(server.url('/other-host'), allowed) == DATA


def test_redirects_end(server):
    asked = len(server.requests)
    with pytest.raises(ImageNotFetched, match='more than 5 redirects'):
        fetch(server.url('/loop'), LOCAL)
    assert len(server.requests) - asked == 6


def test_a_redirect_leads_to_no_file_and_no_nonsense(server):
    allowed = ImageLimits(private_addresses=True, other_hosts=True)
    with pytest.raises(AddressRefused, match='redirects to .*; expected http'):
        fetch(server.url('/to-file'), allowed)
    with pytest.raises(ImageNotFetched, match='malformed URL'):
        fetch(server.url('/to-nonsense'), allowed)


def test_a_redirect_to_a_name_that_is_none(monkeypatch):
    monkeypatch.setattr(image_fetch, '_get', lambda *args: ('http://xn--/', b''))
    with pytest.raises(ImageNotFetched, match='malformed URL'):
        fetch('http://a.test/image.jpg', ImageLimits(other_hosts=True))


def test_any_number_of_seconds_may_be_allowed(server):
    patient = ImageLimits(private_addresses=True, url_seconds=1e300)
    assert fetch(server.url('/image.jpg'), patient)


def test_https_does_not_redirect_to_http(monkeypatch):
    monkeypatch.setattr(image_fetch, '_get', lambda *args: ('http://a.test/image.jpg', b''))
    with pytest.raises(AddressRefused, match='redirects to .*http://a.test.*; expected https'):
        fetch('https://a.test/image.jpg', ImageLimits(other_hosts=True))


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost', '2130706433', '0x7f.1', '0.0.0.0',
                                  '[::1]', '[::ffff:127.0.0.1]'])
def test_this_machine_is_refused(server, host):
    asked = len(server.requests)
    with pytest.raises(AddressRefused, match='no public address; .*'
                                             'LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES=1'):
        fetch(server.url('/image.jpg', host=host), ImageLimits())
    assert len(server.requests) == asked


def test_each_hop_is_checked(server, monkeypatch):
    # 127.0.0.1 plays a host of the internet
    monkeypatch.setattr(image_address, 'is_public', lambda address: address.is_loopback)
    with pytest.raises(AddressRefused, match='10.1.2.3 has no public address'):
        fetch(server.url('/to-private'), ImageLimits(other_hosts=True))


def test_the_address_that_was_checked_is_the_one_connected_to(server, monkeypatch):
    """A name that resolves to a public address first, and to a private one a moment later."""
    answers = iter(['127.0.0.1', '10.0.0.1', '10.0.0.1'])
    genuine = socket.getaddrinfo

    def rebinding(host, *args, **options):
        return genuine(next(answers) if host == 'rebinding.test' else host, *args, **options)
    monkeypatch.setattr(socket, 'getaddrinfo', rebinding)
    monkeypatch.setattr(image_address, 'is_public', lambda address: address.is_loopback)
    assert fetch(server.url('/image.jpg', host='rebinding.test'), ImageLimits()) == DATA
    assert server.requests[-1]['Host'] == f'rebinding.test:{server.server_port}'
    assert next(answers) == '10.0.0.1'


def test_of_several_addresses_one_that_answers_is_enough(server, monkeypatch):
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (address, server.server_port))
                 for address in ('127.0.0.2', '127.0.0.1')]
    genuine = socket.getaddrinfo
    monkeypatch.setattr(socket, 'getaddrinfo', lambda host, *args, **options: addresses
                        if host == 'many.test' else genuine(host, *args, **options))
    assert fetch(server.url('/image.jpg', host='many.test'), LOCAL) == DATA


def test_an_address_that_does_not_answer_leaves_time_for_the_next(server, monkeypatch):
    with socket.create_server(('127.0.0.2', server.server_port), backlog=0) as full:
        pending = socket.create_connection(full.getsockname())
        monkeypatch.setattr(image_address, 'resolve',
                            lambda *args: ['127.0.0.2', '127.0.0.2', '127.0.0.1'])
        limits = ImageLimits(private_addresses=True, url_seconds=3)
        assert fetch(server.url('/image.jpg', host='many.test'), limits) == DATA
        pending.close()


def test_the_certificate_must_be_that_of_the_host(monkeypatch):
    """The TLS handshake asks for the URL's host, though an address is connected to."""
    asked = []

    class Recorded(ssl.SSLContext):
        def wrap_socket(self, sock, *args, server_hostname=None, **options):
            asked.append(server_hostname)
            raise ssl.SSLCertVerificationError('not the certificate of this host')

    monkeypatch.setattr(image_fetch, '_ssl_context', lambda: Recorded(ssl.PROTOCOL_TLS_CLIENT))
    with serving({}) as plain:
        url = plain.url('/image.jpg', host='localhost').replace('http:', 'https:')
        with pytest.raises(ImageNotFetched, match='not the certificate'):
            fetch(url, LOCAL)
    assert asked == ['localhost']


@pytest.mark.parametrize('url', ['http://', 'http:///image.jpg', 'https://:80/', 'http://[::1/',
                                 'http://host:99999999/', 'http://host:port/', 'http://xn--/'])
def test_malformed_urls(url):
    with pytest.raises(BadImageReference, match='expected http'):
        fetch(url, LOCAL)


@pytest.mark.parametrize('address, public', [
    ('8.8.8.8', True), ('2606:4700:4700::1111', True), ('64:ff9b::8.8.8.8', True),
    ('10.0.0.1', False), ('172.16.0.1', False), ('192.168.1.1', False), ('127.0.0.1', False),
    ('127.8.8.8', False), ('169.254.169.254', False), ('100.64.0.1', False), ('0.0.0.0', False),
    ('224.0.0.1', False), ('240.0.0.1', False), ('255.255.255.255', False), ('192.0.2.1', False),
    ('198.18.0.1', False), ('::', False), ('::1', False), ('fe80::1', False), ('fc00::1', False),
    ('fec0::1', False), ('ff02::1', False), ('::ffff:10.0.0.1', False),
    ('::ffff:169.254.169.254', False), ('64:ff9b::10.0.0.1', False), ('2002:a00:1::', False),
    ('2001:0:a00:1::1', False), ('2001:db8::1', False), ('::10.0.0.1', False),
    ('192.0.0.192', False), ('168.63.129.16', False), ('64:ff9b:1::10.0.0.1', False),
    ('3fff::1', False)])
def test_public_addresses(address, public):
    assert image_address.is_public(ipaddress.ip_address(address)) is public
