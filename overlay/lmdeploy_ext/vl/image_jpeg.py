"""Whether a JPEG file is all there (ITU-T T.81, annex B).

OpenCV decodes a baseline JPEG that is cut off without a word, the missing part grey or worse, and
Pillow refuses one that lacks nothing but its end marker. So the end marker is looked for here;
where it is missing, the picture is complete exactly if whatever follows does not change it.
"""
import re
import struct
from typing import Iterator, List, Optional, Tuple

from .image_errors import DamagedImage
from .image_pillow import DECODE_ERRORS, open_image, strict_decoding

_END = b'\xff\xd9'
_START_OF_SCAN = 0xDA
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_COEFFICIENTS = 64
# Two continuations without a marker in them: a decoder that is still waiting for data reads other
# codes, hence other pixels, out of each.
_CONTINUATIONS = (bytes(64) + _END, b'\xfe\x55' * 32 + _END)


def completed(data: bytes) -> bytes:
    """The same file, with an end marker if it had none although every pixel is there.

    Raises:
        DamagedImage: the file is cut off.
    """
    scans = _first_scan(data)
    if scans is not None and (data.endswith(_END) or data.find(_END, scans) >= 0):
        return data
    if scans is None or not _every_coefficient(data, scans) or not _every_pixel(data):
        raise DamagedImage(f'the JPEG file is cut off after {len(data)} bytes; expected a '
                           'complete file; send it again')
    return data.rstrip(b'\xff') + _END


def _segments(data: bytes) -> Iterator[Tuple[int, int]]:
    """Marker and payload start of each segment before the pixel data."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        yield marker, at + 4
        at += 2 + struct.unpack_from('>H', data, at + 2)[0]


def _first_scan(data: bytes) -> Optional[int]:
    """Where the first scan's header begins; None where the file ends before it."""
    return next((at for marker, at in _segments(data) if marker == _START_OF_SCAN), None)


def _components(data: bytes) -> List[int]:
    """The ids of the frame's components."""
    for marker, at in _segments(data):
        if marker in _START_OF_FRAME:
            # precision, height, width, then id, sampling and table of each component
            return list(data[at + 6:at + 6 + 3 * data[at + 5]:3])
    return []


def _every_coefficient(data: bytes, scans: int) -> bool:
    """Whether the scans, taken together, bring every coefficient to its last bit.

    A progressive file that ends between two scans decodes without a complaint, coarsely.
    """
    missing = {(component, k) for component in _components(data) for k in range(_COEFFICIENTS)}
    if not missing:
        return False
    # inside the pixel data a 0xff is followed by 0x00 or a restart marker
    for match in re.finditer(b'\xff\xda', memoryview(data)[scans - 4:]):
        header = data[scans + match.start():scans + match.start() + 12]
        count = header[0] if header else 0
        if len(header) < 1 + 2 * count + 3:
            break
        first, last, approximation = header[1 + 2 * count:4 + 2 * count]
        if approximation & 0x0F == 0:
            missing -= {(component, k) for component in header[1:1 + 2 * count:2]
                        for k in range(first, last + 1)}
    return not missing


def _every_pixel(data: bytes) -> bool:
    """Whether the decoder needs nothing of what would follow the data.

    Asks Pillow: OpenCV's copy of the decoder complains on stderr.
    """
    # a last 0xff is half a marker, or half of a code: left out, it is missed where it was one
    one, other = (open_image(data.rstrip(b'\xff') + more) for more in _CONTINUATIONS)
    with strict_decoding, one, other:
        try:
            return one.tobytes() == other.tobytes()
        except DECODE_ERRORS:
            return False
