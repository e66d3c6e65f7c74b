"""How large an image may be, and from where it may be fetched."""
from dataclasses import dataclass

from .image_errors import ImageTooLarge


@dataclass(frozen=True)
class ImageLimits:
    """Limits on one image; the environment variables in brackets set them.

    Attributes:
        max_pixels: width times height (LMDEPLOY_EXT_IMAGE_MAX_PIXELS). The default is Pillow's
            own limit against decompression bombs: a quarter of a gigabyte of RGB.
        max_bytes: size of the encoded image (LMDEPLOY_EXT_IMAGE_MAX_BYTES).
        max_side: the longer side in pixels (LMDEPLOY_EXT_IMAGE_MAX_SIDE).
        url_seconds: time to fetch a URL, from its look-up to the last byte
            (LMDEPLOY_EXT_IMAGE_URL_SECONDS).
        private_addresses: whether URLs may lead into private networks, this machine included
            (LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES).
        other_hosts: whether a redirect may lead to another host (LMDEPLOY_EXT_IMAGE_OTHER_HOSTS).
    """
    max_pixels: int = 89_478_485
    max_bytes: int = 64 << 20
    max_side: int = 32_768
    url_seconds: float = 10.0
    private_addresses: bool = False
    other_hosts: bool = False

    def check_size(self, width: int, height: int) -> None:
        """Raises ImageTooLarge where an image of width x height pixels is over a limit."""
        if max(width, height) > self.max_side:
            raise ImageTooLarge(
                f'the image has {width}x{height} pixels; expected {self.max_side} a side at most; '
                'send it smaller, or raise LMDEPLOY_EXT_IMAGE_MAX_SIDE')
        if width * height > self.max_pixels:
            raise ImageTooLarge(
                f'the image has {width}x{height} pixels; expected {self.max_pixels} at most; '
                'send it smaller, or raise LMDEPLOY_EXT_IMAGE_MAX_PIXELS')

    def check_bytes(self, size: int) -> None:
        """Raises ImageTooLarge where an encoded image of `size` bytes is over the limit."""
        if size > self.max_bytes:
            raise ImageTooLarge(
                f'the image has {size} bytes; expected {self.max_bytes} at most; send it smaller, '
                'or raise LMDEPLOY_EXT_IMAGE_MAX_BYTES')
