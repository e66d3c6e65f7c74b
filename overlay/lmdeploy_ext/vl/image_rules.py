"""Which pixels a file stands for."""
from dataclasses import dataclass


@dataclass(frozen=True)
class PixelRules:
    """How a file's content becomes RGB.

    Attributes:
        upstream: LMDeploy's rule, for comparisons: what `Image.open(file).convert('RGB')` of
            Pillow gives, bit for bit. It applies no EXIF orientation, drops the alpha channel and
            clips 16-bit greys to white. False is the right picture: orientation applied,
            transparency on white, 16 bits scaled to 8.
    """
    upstream: bool = False
