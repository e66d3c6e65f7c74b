"""The tile settings that `policies.py` compares, and their tiles of a picture."""
from dataclasses import dataclass, replace
from typing import Iterable, Optional

import numpy as np

from ...vl.tile_policy import TileModel, TilePolicy
from ...vl.tiles import cut
from ...vl.tiling import TilePlan, plan

MAX_SHRINK = (1.0, 1.04, 1.1, 1.25, 1.5)
FITS = ('auto', 'pad', 'pad-corner', 'crop', 'stretch')
NEVER = 99  # more tiles than any picture has: no thumbnail
THUMBNAIL_FROM = (2, 3, NEVER)
STOCK_CAPS = (1, 2, 3, 6, 12)


@dataclass(frozen=True)
class Setting:
    """One way to cut pictures.

    Attributes:
        max_tiles: `max_dynamic_patch`; None for the model's own.
        upstream: whether pixels are upstream's (Pillow's bicubic resize), or this project's.
        corner: whether padded content stands in the top left corner of the grid, where `native`
            has it in the middle.
    """
    name: str
    policy: TilePolicy
    max_tiles: Optional[int] = None
    upstream: bool = False
    corner: bool = False

    def plan(self, width: int, height: int, model: TileModel) -> TilePlan:
        """How a picture of that size is cut."""
        planned = plan(width, height, self.policy, model, self.max_tiles)
        return replace(planned, left=0, top=0) if self.corner else planned


def stock_settings(caps: Iterable[int] = STOCK_CAPS) -> list[Setting]:
    """Upstream's tiles and pixels at each `max_dynamic_patch`, the largest first; then those tiles
    with this project's resize."""
    stock, caps = TilePolicy('stock'), sorted(caps, reverse=True)
    return [Setting(f'stock {cap}', stock, cap, upstream=True) for cap in caps] + [
        Setting(f'stock {caps[0]}, our resize', stock, caps[0])]


def native_settings(max_shrink: Iterable[float] = MAX_SHRINK,
                    fits: Iterable[str] = FITS,
                    thumbnail_from: Iterable[int] = THUMBNAIL_FROM) -> list[Setting]:
    """`native` in every combination."""
    thumbnail_from, max_shrink = list(thumbnail_from), list(max_shrink)
    return [
        Setting(f'native {shrink:g}, {fit}, {_thumbnail(tiles)}',
                TilePolicy('native', max_shrink=shrink, fit=fit.partition('-')[0],
                           thumbnail_from=tiles),
                corner=fit == 'pad-corner')
        for fit in fits for tiles in thumbnail_from for shrink in max_shrink
    ]


def _thumbnail(tiles: int) -> str:
    return 'no thumbnail' if tiles >= NEVER else f'thumbnail from {tiles}'


@dataclass(frozen=True)
class Tilings:
    """A picture's tiles for some settings; settings that plan alike share them.

    Attributes:
        tiles: different tilings, uint8 `[tiles, side, side, 3]` each.
        of_setting: for each setting the index of its tiling.
    """
    tiles: list[np.ndarray]
    of_setting: list[int]


def tilings(image: np.ndarray, settings: Iterable[Setting], model: TileModel) -> Tilings:
    """Cut a picture, uint8 RGB `[height, width, 3]`, as every setting says."""
    height, width = image.shape[:2]
    cuts: dict[tuple, int] = {}
    tiles, of_setting = [], []
    for setting in settings:
        key = setting.plan(width, height, model), setting.upstream
        if key not in cuts:
            cuts[key] = len(tiles)
            tiles.append(cut(image, key[0], model.side, setting.upstream))
        of_setting.append(cuts[key])
    return Tilings(tiles, of_setting)
