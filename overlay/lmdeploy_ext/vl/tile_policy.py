"""What decides an image's tiles besides its size: the checkpoint and the operator's policy."""
import math
from dataclasses import dataclass
from typing import Any, Optional

KINDS = ('native', 'stock', 'budget')
FITS = ('auto', 'pad', 'crop', 'stretch')


@dataclass(frozen=True)
class TileModel:
    """What a checkpoint wants: tiles of `side` pixels that become `tokens` tokens each, between
    `min_tiles` and `max_tiles` in a grid, and where there are several, a thumbnail beside them."""
    side: int = 448
    tokens: int = 256
    min_tiles: int = 1
    max_tiles: int = 12
    thumbnail: bool = True

    @classmethod
    def from_config(cls, config: Any) -> 'TileModel':
        """From the configuration of an `InternVLChatModel`."""
        vision = config.vision_config
        patches = (vision.image_size // vision.patch_size)**2
        return cls(side=vision.image_size,
                   tokens=int(patches * config.downsample_ratio**2),
                   min_tiles=config.min_dynamic_patch,
                   max_tiles=config.max_dynamic_patch,
                   thumbnail=bool(config.use_thumbnail))


@dataclass(frozen=True)
class TilePolicy:
    """How the tiles of an image are chosen.

    Attributes:
        kind: `native`, `stock` or `budget`. The other attributes mean nothing to `stock`.
        budget: image tokens that a request may have, for `budget`. An image gets one tile even
            where that is more.
        max_shrink: an image that is shown at 1/max_shrink of its size or more is shown well
            enough: it gets no more tiles.
        fit: `pad` shows all of the image with its aspect ratio, mean colour on both sides of it;
            `crop` fills the grid and loses what juts out, at most a share of 1 - 1/max_shrink of
            an axis; `stretch` scales each axis to the grid, as upstream does; `auto` does the
            same, but where a small grid would lose much more along one axis than along the other,
            it shows the middle (see docs/images.md). Only `stretch` and `auto` ever enlarge. The
            thumbnail shows all of the image: under `crop` it is padded.
        thumbnail_from: the least number of tiles in a grid that get a thumbnail beside them.
    """
    kind: str = 'native'
    budget: Optional[int] = None
    max_shrink: float = 1.1
    fit: str = 'auto'
    thumbnail_from: int = 3

    def __post_init__(self):
        for name, value, allowed in (('tile policy', self.kind, KINDS), ('fit', self.fit, FITS)):
            if value not in allowed:
                raise ValueError(f'{value!r} is no {name}; choose one of {", ".join(allowed)}')
        if (self.kind == 'budget') != (self.budget is not None):
            raise ValueError(f'tile policy {self.kind!r} with a budget of {self.budget}; a budget '
                             "belongs to 'budget', written budget:N")
        if self.budget is not None and self.budget < 1:
            raise ValueError(f'a budget of {self.budget} image tokens; give at least 1')
        if not 1 <= self.max_shrink < math.inf:
            raise ValueError(f'max_shrink is {self.max_shrink}; give 1 (no shrinking) or more')
        if self.thumbnail_from < 2:
            raise ValueError(f'a thumbnail from {self.thumbnail_from} tiles on; give at least 2, '
                             'for a single tile is its own thumbnail')

    @classmethod
    def parse(cls, text: str, **attributes) -> 'TilePolicy':
        """From `native`, `stock` or `budget:N`, and the other attributes by name.

        Raises:
            ValueError: saying what was found and what is allowed.
        """
        kind, colon, number = text.strip().partition(':')
        if kind not in KINDS or bool(colon) != (kind == 'budget'):
            raise ValueError(f'tile policy {text!r}; choose native, stock or budget:N, '
                             'where N counts image tokens')
        if not colon:
            return cls(kind, **attributes)
        if not (number.isascii() and number.isdigit()):
            raise ValueError(f'tile policy {text!r}: {number!r} is no number of image tokens; '
                             'write budget:1280 for instance')
        return cls(kind, int(number), **attributes)
