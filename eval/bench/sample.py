"""One image through one way of preparing it."""
from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass(frozen=True)
class Sample:
    """What it took, and what came out.

    Attributes:
        decode: seconds from the file to RGB pixels.
        cut: seconds from there to tiles.
        tiles: how many, the thumbnail included.
        pixels: uint8 `[tiles, side, side, 3]`; None where they were not asked for.
    """
    decode: float
    cut: float
    tiles: int
    pixels: Optional[np.ndarray]

    @property
    def total(self) -> float:
        """Seconds from the file to tiles."""
        return self.decode + self.cut
