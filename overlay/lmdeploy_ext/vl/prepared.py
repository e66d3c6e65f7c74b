"""An image as the vision model takes it."""
from typing import Optional

import numpy as np

from lmdeploy_ext.vl.admission import Place
from lmdeploy_ext.vl.tile_buffers import TileBuffers


class PreparedImage:
    """Tiles of one image, on their way to the vision model.

    Attributes:
        tiles: uint8 RGB [tiles, side, side, 3], the thumbnail last; valid until `release`.

    Args:
        buffers: where `tiles` was taken from and goes back to; None where it is not theirs.
        place: what the image holds of the admission; None for none. An image that is dropped
            without `release` frees its place, too.
    """

    def __init__(self, tiles: np.ndarray, buffers: Optional[TileBuffers] = None,
                 place: Optional[Place] = None) -> None:
        self.tiles = tiles
        self._buffers = buffers
        self._place = place

    def release(self) -> None:
        """The tiles have been copied to where the model runs, or nobody wants them any more."""
        buffers, self._buffers = self._buffers, None
        if buffers is not None:
            buffers.give(self.tiles)
            self.tiles = self.tiles[:0]
        if self._place is not None:
            self._place.free()
