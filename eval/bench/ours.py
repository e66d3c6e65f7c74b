"""The image pipeline of `lmdeploy_ext.vl`, one image on one thread: from a file to uint8 tiles."""
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

import numpy as np

from ...vl import image_source
from ...vl.image_decode import PixelRules, decode
from ...vl.image_header import read_header
from ...vl.image_limits import ImageLimits
from ...vl.tile_buffers import TileBuffers
from ...vl.tiles import cut, needed
from ...vl.tiling import TileModel, TilePlan, TilePolicy, plan
from .sample import Sample
from .scope import NATIVE, SAME_TILES, UPSTREAM_PIXELS

LIMITS = ImageLimits()
MODEL = TileModel()  # InternVL2's: 12 tiles and a thumbnail, side 448
BUFFER_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Ours:
    """One way to prepare images: a tile policy and a rule for pixels.

    The tiles are uint8, in a reused buffer; normalisation is left to the GPU.
    """
    name: str
    policy: TilePolicy
    rules: PixelRules
    buffers: TileBuffers

    def prepare(self, path: Path, keep: bool = False) -> Sample:
        """One image from a file to tiles; `keep`: the tiles' pixels are wanted."""
        start = time.perf_counter()
        image, tile_plan = self._decode(path)
        decoded = time.perf_counter()
        out = self.buffers.take(tile_plan.tiles)
        tiles = cut(image, tile_plan, MODEL.side, self.rules.upstream, out=out)
        end = time.perf_counter()
        sample = Sample(decoded - start, end - decoded, 0.0, len(tiles),
                        tiles.copy() if keep else None)
        self.buffers.give(out)
        return sample

    def _decode(self, path: Path) -> Tuple[np.ndarray, TilePlan]:
        data = image_source.read(path, LIMITS)
        header = read_header(data, LIMITS, self.rules)
        tile_plan = plan(header.width, header.height, self.policy, MODEL)
        return decode(data, header, self.rules, at_least=needed(tile_plan)), tile_plan


def ways() -> Tuple[Ours, ...]:
    """The default policy, stock's tiles made our way, and stock's pixels bit for bit."""
    buffers = TileBuffers(MODEL.side, pinned=False, limit_bytes=BUFFER_BYTES)
    return (Ours(NATIVE, TilePolicy(kind='native'), PixelRules(), buffers),
            Ours(SAME_TILES, TilePolicy(kind='stock'), PixelRules(), buffers),
            Ours(UPSTREAM_PIXELS, TilePolicy(kind='stock'), PixelRules(upstream=True), buffers))
