"""What can be wrong with an image of a request; each ends that request alone, with its reason.

Messages are one line: what was found, what was expected, what to do. They never quote a file's
content (on a server, a path may name any file), a data URL, or the credentials or query of a URL.
"""


class UnreadableImage(ValueError):
    """An image of the request cannot be used."""


class NotAnImage(UnreadableImage):
    """The data is of no image format that is read here (HTML, SVG, PDF, text, nothing at all)."""


class DamagedImage(UnreadableImage):
    """The data begins as an image, but not all of its pixels are there."""


class ImageTooLarge(UnreadableImage):
    """More bytes, more pixels or a longer side than the limits allow."""


class BadImageReference(UnreadableImage):
    """The reference leads to no data: no such file, a malformed data URL, an unusable type."""


class ImageNotFetched(UnreadableImage):
    """The server of a URL did not give the image, or not in time."""


class AddressRefused(ImageNotFetched):
    """A URL leads to an address, a host or a scheme that the settings do not allow."""


def shortened(reference: str, length: int = 100) -> str:
    """A path or an address as a message shows it: on one line, at most about `length` long."""
    return repr(reference if len(reference) <= length else f'{reference[:length]}…')
