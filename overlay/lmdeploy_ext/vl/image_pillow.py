"""What Pillow does for the image pipeline: read headers, and decode what OpenCV cannot."""
import io
import struct
import sys
import threading
import zlib
from types import SimpleNamespace
from typing import Callable

import numpy as np
from PIL import Image, ImageFile

from .image_errors import DamagedImage, NotAnImage, UnreadableImage
from .image_rules import PixelRules

Image.init()
# Others of Pillow's formats have no signature, run other programs or hold no photographs, and
# each format more is a parser more that the internet can reach. AVIF is in Pillow from 11.3 on.
FORMATS = tuple(name for name in ('JPEG', 'PNG', 'WEBP', 'GIF', 'BMP', 'TIFF', 'AVIF', 'JPEG2000',
                                  'PPM') if name in Image.OPEN)
# What Pillow's readers raise on damaged files; AVIF's raises RuntimeError, and UserWarning is one
# where the process makes errors of warnings.
DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError,
                 OverflowError, MemoryError, RuntimeError, UserWarning, struct.error, zlib.error,
                 Image.DecompressionBombError)
_PREFIX = 16
# Pixels that are converted at a time: their memory is reused, not asked of the system anew.
_BAND_PIXELS = 1 << 15
# Formats whose 16-bit greys Pillow opens as 32-bit ones.
_GREYS_OF_16_BITS = ('PNG', 'PPM')
_ALPHA_MODES = ('RGBA', 'LA', 'PA', 'La', 'RGBa')


def open_image(data: bytes) -> ImageFile.ImageFile:
    """Read the header of an encoded image; its pixels stay encoded.

    `Image.open` would apply Pillow's process-wide pixel limit, and would not tell a damaged image
    from no image.

    Raises:
        NotAnImage: the data has the signature of no format in FORMATS.
        DamagedImage: it has one, but no header that can be read.
    """
    prefix = data[:_PREFIX].ljust(_PREFIX, b'\0')
    for name in FORMATS:
        factory, accept = Image.OPEN[name]
        if accept(prefix) is True:
            try:
                return factory(io.BytesIO(data), '')
            except DECODE_ERRORS as error:
                raise DamagedImage(
                    f'the header of the {name} file cannot be read ({len(data)} bytes); expected '
                    'an intact file; send it again') from error
    found = f'{len(data)} bytes that are no image' if data else 'no bytes at all'
    raise NotAnImage(f'found {found}; expected {", ".join(FORMATS)}; convert the file to one')


def has_transparency(image: Image.Image) -> bool:
    """Whether pixels of the image may be transparent (alpha channel, or a transparent colour)."""
    return image.mode in _ALPHA_MODES or 'transparency' in image.info


def to_rgb(image: Image.Image, rules: PixelRules) -> np.ndarray:
    """The pixels of an image, its first frame, as uint8 RGB [h, w, 3]; no orientation applied.

    Converted in bands, so that the image exists once in Pillow's form and once as the result.

    Raises:
        DamagedImage: the pixels cannot be decoded in full.
        UnreadableImage: 32-bit or floating-point pixels, whose range nothing tells, or others
            that do not become RGB.
    """
    convert = _conversion(image, rules)
    with strict_decoding:
        try:
            image.load()
        except DECODE_ERRORS as error:
            raise DamagedImage(
                f'the {image.format or "image"} is damaged or cut off; expected an intact image '
                f'of {image.width}x{image.height} pixels; send it again') from error
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        try:
            pixels[top:bottom] = convert(image.crop((0, top, width, bottom)))
        except (TypeError, ValueError) as error:
            raise UnreadableImage(
                f'the image has pixels of mode {image.mode} that Pillow does not convert; '
                'expected a usual mode, and a transparent colour of that mode if any; '
                'convert it to 8-bit RGB') from error
    return pixels


def _conversion(image: Image.Image, rules: PixelRules) -> Callable[[Image.Image], np.ndarray]:
    """What makes uint8 [rows, w, 3], or [rows, w, 1] for greys, of a band of the image."""
    if rules.upstream:
        return _as_upstream
    if image.mode.startswith('I;16') or (image.mode == 'I' and image.format in _GREYS_OF_16_BITS):
        return _from_16_bits
    if image.mode in ('I', 'F'):
        raise _unusable_mode(image.mode)
    return _on_white if has_transparency(image) else _as_upstream


def _as_upstream(band: Image.Image) -> np.ndarray:
    # a conversion to the same mode would copy the band
    return np.asarray(band if band.mode == 'RGB' else band.convert('RGB'))


def _on_white(band: Image.Image) -> np.ndarray:
    """A band as it looks on white paper."""
    rgba = band.convert('RGBA')
    alpha = rgba.getchannel('A')
    if alpha.getextrema() == (255, 255):
        return _as_upstream(rgba)
    paper = Image.new('RGB', band.size, 'white')
    paper.paste(rgba, mask=alpha)
    return np.asarray(paper)


def _from_16_bits(band: Image.Image) -> np.ndarray:
    """The high byte of 16-bit greys, as Pillow and libpng make 8 of 16-bit colours."""
    greys = np.asarray(band)
    pixels = (greys >> 8).astype(np.uint8)
    if 'transparency' in band.info:
        pixels[greys == band.info['transparency']] = 255
    return pixels[..., np.newaxis]


def _unusable_mode(mode: str) -> UnreadableImage:
    return UnreadableImage(f'the image has pixels of mode {mode}; expected 8 or 16 bits a '
                           'channel; convert it to 8-bit RGB')


class _StrictDecoding:
    """While any thread is inside, Pillow reports truncated files, whatever LMDeploy does.

    LMDeploy's `load_image` sets Pillow's process-wide `LOAD_TRUNCATED_IMAGES` each time it is
    called; from then on cut-off files decode without an error, their missing part grey. Inside,
    that function (where its module has been imported) sets the flag on an object that nobody
    reads; outside, the flag is what it was.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._inside = 0
        self._tolerant = False
        self._loader = None

    def __enter__(self):
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
                self._loader = sys.modules.get('lmdeploy.vl.utils')
                if self._loader is not None:
                    self._loader.ImageFile = SimpleNamespace(LOAD_TRUNCATED_IMAGES=True)
            # each time, for the module may have been imported since
            ImageFile.LOAD_TRUNCATED_IMAGES = False

    def __exit__(self, *exception):
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = self._tolerant
                if self._loader is not None:
                    self._loader.ImageFile = ImageFile


strict_decoding = _StrictDecoding()
