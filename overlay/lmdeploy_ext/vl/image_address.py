"""Which network addresses an image may be fetched from.

A server that fetches what its callers name must not be led into the network it stands in
(OWASP, "Server-side request forgery"): only addresses of the public internet are allowed, unless
the operator says otherwise, and the connection goes to the very address that was checked.
"""
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as LookupTimeout
from typing import List, Union

from .image_errors import AddressRefused, ImageNotFetched

# A look-up cannot be interrupted: it goes on here when its image's time is over.
_LOOKUPS = ThreadPoolExecutor(max_workers=64, thread_name_prefix='image-dns')
# IPv6 addresses of gateways that lead to the IPv4 address in their last 32 bits (RFC 6052)
_NAT64 = ipaddress.ip_network('64:ff9b::/96')
# What `ipaddress` takes for public, at least in some releases of Python, and is not: IANA's
# special-purpose addresses, and last the one at which Azure's machines find their host's agent
_NOT_PUBLIC = tuple(ipaddress.ip_network(network) for network in (
    '192.0.0.0/24', '64:ff9b:1::/48', '3fff::/20', '168.63.129.16/32'))
Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]


def resolve(host: str, port: int, seconds: float, private_allowed: bool) -> List[str]:
    """Addresses of `host` that may be connected to, in the resolver's order; at least one.

    Raises:
        AddressRefused: all of them are private, and private ones are not allowed.
        ImageNotFetched: the host is unknown, or its look-up took longer than `seconds`.
    """
    lookup = _LOOKUPS.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = lookup.result(timeout=max(0.0, seconds))
    except LookupTimeout as error:
        lookup.cancel()
        raise ImageNotFetched(
            f'the look-up of host {host} took too long; expected an answer in time; check the '
            'host name, or raise LMDEPLOY_EXT_IMAGE_URL_SECONDS') from error
    except (OSError, UnicodeError) as error:
        raise ImageNotFetched(f'no address was found for host {host}; expected a host that '
                              'exists; check the URL') from error
    addresses = list(dict.fromkeys(sockaddr[0] for *_, sockaddr in found))
    allowed = [address for address in addresses
               if private_allowed or is_public(ipaddress.ip_address(address))]
    if not allowed:
        raise AddressRefused(
            f'host {host} has no public address; expected a host of the public internet; '
            'LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES=1 allows private ones')
    return allowed


def is_public(address: Address) -> bool:
    """Whether an address is one of the public internet, and so is any IPv4 address inside it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
        # the lower half of a Teredo address names a server and a client of its own
        if address.teredo is not None or address.is_site_local:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
