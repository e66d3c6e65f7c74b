"""Size, format and orientation of an encoded image, before any pixel of it is decoded."""
from dataclasses import dataclass

from PIL import ExifTags, Image, ImageFile

from . import image_gif, image_jpeg, image_png
from .image_limits import ImageLimits
from .image_pillow import DECODE_ERRORS, has_transparency, open_image
from .image_rules import PixelRules

UPRIGHT = 1
_ANIMATED_FORMATS = ('GIF', 'WEBP', 'PNG', 'AVIF')
# Pillow applies a TIFF file's orientation itself, to the size as well.
_UPRIGHT_FORMATS = ('TIFF', )


@dataclass(frozen=True)
class ImageHeader:
    """What an image is said to be.

    Attributes:
        width, height: pixels, after the orientation that the rules apply.
        format: Pillow's name (`JPEG`, `MPO`, `PNG`, …).
        mode: Pillow's name (`RGB`, `L`, `P`, `CMYK`, `I;16`, …).
        orientation: EXIF orientation to apply, 1 to 8; 1 where the rules apply none.
        animated: of several frames, of which the first is used.
        transparent: pixels may be transparent, by an alpha channel or a transparent colour.
    """
    width: int
    height: int
    format: str
    mode: str
    orientation: int
    animated: bool
    transparent: bool

    @property
    def stored_size(self):
        """(width, height) in pixels as encoded, before the orientation."""
        return (self.height, self.width) if swaps_axes(self.orientation) else (self.width,
                                                                               self.height)


def swaps_axes(orientation: int) -> bool:
    """Whether an EXIF orientation turns rows into columns."""
    return orientation >= 5


def read_header(data: bytes, limits: ImageLimits, rules: PixelRules) -> ImageHeader:
    """Read the header and check the size against the limits.

    Raises:
        NotAnImage, DamagedImage: see `open_image`.
        ImageTooLarge: more pixels or a longer side than the limits allow.
        UnreadableImage: it would take minutes to read the header.
    """
    if data.startswith(b'GIF8'):
        image_gif.check_comments(data)
    elif data.startswith(b'\xff\xd8'):
        image_jpeg.check_exif(data)
    with open_image(data) as image:
        width, height = image.size
        limits.check_size(width, height)
        orientation = UPRIGHT if rules.upstream else exif_orientation(image, data)
        if swaps_axes(orientation):
            width, height = height, width
        return ImageHeader(width, height, image.format, image.mode, orientation,
                           _is_animated(image), has_transparency(image))


def _is_animated(image: ImageFile.ImageFile) -> bool:
    if image.format not in _ANIMATED_FORMATS:
        return False
    try:
        return getattr(image, 'is_animated', False)
    except DECODE_ERRORS:
        # a second frame that is damaged: the first one may be whole
        return True


def exif_orientation(image: ImageFile.ImageFile, data: bytes = b'') -> int:
    """The EXIF orientation of an opened file, 1 to 8; 1 where it has none that makes sense.

    `data` is the file's content where the caller has it: a PNG file's EXIF may stand behind its
    pixels, and `image.getexif()` would decode them all to find it.
    """
    if image.format in _UPRIGHT_FORMATS:
        return UPRIGHT
    if image.format == 'PNG' and 'exif' not in image.info:
        late = image_png.exif(data)
        if late is not None:
            image.info['exif'] = b'Exif\x00\x00' + late
    try:
        # the base class's: it reads what is there and decodes nothing
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, UPRIGHT)
    except DECODE_ERRORS:
        # metadata that cannot be read does not spoil the pixels
        return UPRIGHT
    return orientation if orientation in range(1, 9) else UPRIGHT
