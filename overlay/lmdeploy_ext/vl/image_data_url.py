"""Images inside data URLs (RFC 2397)."""
import base64
import binascii
from urllib.parse import unquote_to_bytes

from .image_errors import BadImageReference
from .image_limits import ImageLimits

SCHEME = 'data:'
# What may stand between the characters of wrapped base64, and the two characters of its URL-safe
# form (RFC 4648, section 5).
_WHITESPACE = b' \t\r\n\f'
_URL_SAFE = bytes.maketrans(b'-_', b'+/')
# A character of content may be percent-encoded, as three, and bytes take 4/3 in base64.
_LONGEST_EXPANSION = 4


def read_data_url(url: str, limits: ImageLimits) -> bytes:
    """The bytes that a data URL holds, in base64 or percent-encoded.

    The media type is not looked at: the data says what it is. Missing `=` at the end of base64,
    white space in it and its URL-safe form are accepted.

    Raises:
        BadImageReference: no comma, or base64 that is none.
        ImageTooLarge: more than `limits.max_bytes`; found before the content is decoded.
    """
    description, comma, text = url[len(SCHEME):].partition(',')
    if not comma:
        raise BadImageReference('found a data URL without a comma; expected '
                                'data:image/…;base64,…; correct it')
    limits.check_bytes(len(text) // _LONGEST_EXPANSION)
    try:
        content = text.encode('ascii')
    except UnicodeEncodeError as error:
        raise BadImageReference('found a data URL with characters beyond ASCII; expected base64; '
                                'encode the image anew') from error
    if b'%' in content:
        content = unquote_to_bytes(content)
    if not description.lower().replace(' ', '').endswith(';base64'):
        limits.check_bytes(len(content))
        return content
    content = content.translate(_URL_SAFE, delete=_WHITESPACE).rstrip(b'=')
    limits.check_bytes(len(content) * 3 // 4)
    try:
        return base64.b64decode(content + b'=' * (-len(content) % 4), validate=True)
    except binascii.Error as error:
        raise BadImageReference(f'found a data URL of {len(content)} characters that are not '
                                'base64; expected valid base64; encode the image anew') from error
