"""Whether a JPEG file is all there (ITU-T T.81, annex B).

OpenCV decodes a baseline JPEG that is cut off without a word, the missing part grey or worse, and
Pillow refuses one that lacks nothing but its end marker. So the end marker is looked for here;
where it is missing, the picture is complete exactly if whatever follows does not change it.
"""
import re
import struct
from typing import Iterator, List, Optional, Tuple

from .image_errors import DamagedImage, UnreadableImage
from .image_pillow import DECODE_ERRORS, open_image, strict_decoding

_END = b'\xff\xd9'
_SCAN = b'\xff\xda'
_START_OF_SCAN = 0xDA
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_PAYLOAD = frozenset((0x00, 0x01, *range(0xD0, 0xDA)))
_COEFFICIENTS = 64
_MAX_EXIF_PIECES = 100
# A decoder goes over all of the picture for each scan, of which a file may hold thousands in a few
# kilobytes ("Two Issues with the JPEG Standard", libjpeg-turbo). Encoders write about ten.
_MAX_SCANS = 100
_MAX_MARKERS = 10 * _MAX_SCANS
# Inside the pixel data a 0xff is followed by 0x00 or a restart marker.
_MARKER = re.compile(b'\xff([^\x00\x01\xff\xd0-\xd7])')
_RESTARTS = 8
# A decoder that is still waiting for data reads other codes out of each, hence other pixels.
_FILLERS = (bytes(64), b'\xfe\x55' * 32)


def check_exif(data: bytes) -> None:
    """Raises UnreadableImage where the EXIF data is in so many pieces, of which there should be
    one, that Pillow, which joins them one by one, would take minutes for it."""
    pieces = data.count(b'Exif\0\0')
    if pieces > _MAX_EXIF_PIECES:
        raise UnreadableImage(f'the JPEG file has {pieces} pieces of EXIF data; expected '
                              f'{_MAX_EXIF_PIECES} at most; save it anew')


def completed(data: bytes) -> bytes:
    """The same file, with an end marker if it had none although every pixel is there.

    Raises:
        DamagedImage: the file is cut off.
        UnreadableImage: it has so many scans that it would take minutes or hours to decode.
    """
    scans = _first_scan(data)
    if scans is not None and _too_many(data, scans):
        raise UnreadableImage(f'the JPEG file has more than {_MAX_SCANS} scans; expected no more; '
                              'save it anew')
    if scans is not None and (data.endswith(_END) or data.find(_END, scans) >= 0):
        return data
    if scans is None or not _every_coefficient(data, scans) or not _every_pixel(data):
        raise DamagedImage(f'the JPEG file is cut off after {len(data)} bytes; expected a '
                           'complete file; send it again')
    return data.rstrip(b'\xff') + _END


def _segments(data: bytes) -> Iterator[Tuple[int, int]]:
    """Marker and payload start of each segment before the pixel data."""
    at = 2
    while True:
        # as libjpeg does, over bytes that belong to no segment
        at = data.find(b'\xff', at)
        if at < 0 or at + 4 > len(data):
            return
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _WITHOUT_PAYLOAD:
            at += 2
        else:
            yield marker, at + 4
            at += 2 + struct.unpack_from('>H', data, at + 2)[0]


def _first_scan(data: bytes) -> Optional[int]:
    """Where the first scan's header begins; None where the file ends before it."""
    return next((at for marker, at in _segments(data) if marker == _START_OF_SCAN), None)


def _too_many(data: bytes, scans: int) -> bool:
    """Whether there are more than _MAX_SCANS scans before the end marker.

    Behind it anything may stand: a phone's film of megabytes, for instance.
    """
    if data.count(_SCAN, scans - 4) <= _MAX_SCANS:
        return False
    count, at = 0, scans - 4
    for _ in range(_MAX_MARKERS):
        match = _MARKER.search(data, at)
        if match is None or match[0] == _END or match.end() + 2 > len(data):
            return False
        count += match[0] == _SCAN
        if count > _MAX_SCANS:
            return True
        at = match.end() + struct.unpack_from('>H', data, match.end())[0]
    return True


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
    for match in re.finditer(_SCAN, memoryview(data)[scans - 4:]):
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
    one, other = (open_image(_continued(data, filler)) for filler in _FILLERS)
    with strict_decoding, one, other:
        try:
            return one.tobytes() == other.tobytes()
        except DECODE_ERRORS:
            return False


def _continued(data: bytes, filler: bytes) -> bytes:
    """The file with `filler` behind it, and again behind the restart marker that would be next."""
    # a last 0xff is half a marker, or half of a code: left out, it is missed where it was one
    data = data.rstrip(b'\xff')
    scan = data[data.rindex(_SCAN):]
    restarts = re.findall(b'\xff([\xd0-\xd7])', scan)
    number = (restarts[-1][0] + 1) % _RESTARTS if restarts else 0
    return data + filler + bytes([0xFF, 0xD0 + number]) + filler + _END
