"""One image through one way of preparing it."""
from dataclasses import dataclass
from typing import Optional

import numpy as np


@dataclass(frozen=True)
class Sample:
    """What it took, and what came out.

    Attributes:
        decode: seconds from the file to RGB pixels.
        cut: seconds from there to tiles; stock's are float32 and normalised, ours uint8.
        hand_over: seconds from there to what is copied to the device: stock puts all tiles into
            one tensor and makes that float16. 0 for ours.
        tiles: how many, the thumbnail included.
        pixels: uint8 `[tiles, side, side, 3]`; None where they were not asked for.
    """
    decode: float
    cut: float
    hand_over: float
    tiles: int
    pixels: Optional[np.ndarray]

    @property
    def total(self) -> float:
        """Seconds from the file to what is copied to the device."""
        return self.decode + self.cut + self.hand_over
