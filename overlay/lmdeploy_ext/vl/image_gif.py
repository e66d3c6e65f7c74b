"""The blocks of a GIF file (GIF89a specification).

Pillow joins the pieces of comments one by one, each time copying all that came before: a few
megabytes of comments take it minutes, long before there is a pixel.
"""
from .image_errors import UnreadableImage

_SCREEN, _DESCRIPTOR = 13, 10  # bytes, colour tables not counted
_EXTENSION, _COMMENT, _IMAGE, _TRAILER = 0x21, 0xFE, 0x2C, 0x3B
_MAX_PIECES = 4096  # a megabyte of comments


def check_comments(data: bytes) -> None:
    """Raises UnreadableImage where the comments are so long that Pillow would take minutes."""
    at, pieces = _SCREEN + _colour_table(data, 10), 0
    while at < len(data) and data[at] != _TRAILER:
        comment = data[at:at + 2] == bytes([_EXTENSION, _COMMENT])
        if data[at] == _EXTENSION:
            at += 2
        elif data[at] == _IMAGE:
            # behind the descriptor and its table: the width of the codes
            at += _DESCRIPTOR + _colour_table(data, at + 9) + 1
        else:  # of no block; passed over, as Pillow does
            at += 1
            continue
        while at < len(data) and data[at]:
            at, pieces = at + 1 + data[at], pieces + comment
        at, pieces = at + 1, pieces + comment
        if pieces > _MAX_PIECES:
            raise UnreadableImage(f'the GIF file has comments of more than {_MAX_PIECES} pieces; '
                                  'expected fewer; save it anew')


def _colour_table(data: bytes, flags: int) -> int:
    """Bytes of the colour table that the flags at that position announce."""
    if flags >= len(data) or not data[flags] & 0x80:
        return 0
    return 3 << ((data[flags] & 0x07) + 1)
