"""The chunks of a PNG file (PNG specification, third edition, section 5).

Pillow does not look at the checksums of the pixel data, and libpng writes a line to stderr for
every ancillary chunk that it finds odd (colour profiles, mostly). So the checksums are compared
here, and libpng is handed the chunks that make the pixels, and no others.
"""
import struct
import zlib
from typing import Iterator, NamedTuple, Optional

from .image_errors import DamagedImage

SIGNATURE = b'\x89PNG\r\n\x1a\n'
_PIXEL_CHUNKS = (b'IHDR', b'PLTE', b'IDAT', b'IEND')
# length, type before the payload; checksum after it
_BEFORE, _AFTER = 8, 4


class Chunk(NamedTuple):
    """A chunk that is there in full; `start` and `stop` bound its payload, in bytes."""
    kind: bytes
    start: int
    stop: int


def chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks up to IEND; fewer where the file is cut off."""
    start = len(SIGNATURE) + _BEFORE
    while start + _AFTER <= len(data):
        length, kind = struct.unpack_from('>I4s', data, start - _BEFORE)
        stop = start + length
        if stop + _AFTER > len(data):
            return
        yield Chunk(kind, start, stop)
        if kind == b'IEND':
            return
        start = stop + _AFTER + _BEFORE


def check_sums(data: bytes) -> None:
    """Raises DamagedImage where the checksum of a chunk that makes the pixels is wrong."""
    view = memoryview(data)
    for kind, start, stop in chunks(data):
        if kind in _PIXEL_CHUNKS:
            stated, = struct.unpack_from('>I', data, stop)
            if zlib.crc32(view[start - len(kind):stop]) != stated:
                raise DamagedImage(
                    f'the PNG file has a wrong checksum at byte {stop}; expected an intact file; '
                    'send it again')


def pixel_chunks(data: bytes) -> Optional[bytes]:
    """The file reduced to the chunks that make its pixels; None where it is cut off."""
    kept = [chunk for chunk in chunks(data) if chunk.kind in _PIXEL_CHUNKS]
    if not kept or kept[-1].kind != b'IEND':
        return None
    view = memoryview(data)
    return b''.join([SIGNATURE, *(view[start - _BEFORE:stop + _AFTER] for _, start, stop in kept)])


def exif(data: bytes) -> Optional[bytes]:
    """The payload of the eXIf chunk, which may also stand behind the pixels."""
    for kind, start, stop in chunks(data):
        if kind == b'eXIf':
            return data[start:stop]
    return None
