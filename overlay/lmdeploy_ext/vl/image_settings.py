"""What this process's settings say about images, in the terms of the image pipeline."""
import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Optional

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.image_decode import PixelRules
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.tile_policy import TilePolicy


@dataclass(frozen=True)
class ImageSettings:
    """How images are read and cut.

    Attributes:
        limits: what an image may be, and where it may come from.
        rules: how its pixels are read.
        policy: how it is cut into tiles.
        max_tiles: the operator's cap on tiles an image, thumbnail not counted; None for none.
    """
    limits: ImageLimits
    rules: PixelRules
    policy: TilePolicy
    max_tiles: Optional[int] = None

    @classmethod
    def of(cls, settings: Settings) -> 'ImageSettings':
        """The part of a process's settings that is about images."""
        limits = dict(max_pixels=settings.image_max_pixels,
                      max_bytes=settings.image_max_bytes,
                      max_side=settings.image_max_side,
                      url_seconds=settings.image_url_seconds,
                      private_addresses=settings.image_private_addresses,
                      other_hosts=settings.image_other_hosts)
        policy = dict(max_shrink=settings.max_shrink,
                      fit=settings.tile_fit,
                      thumbnail_from=settings.thumbnail_from)
        return cls(ImageLimits(**_given(limits)),
                   PixelRules(upstream=settings.pixels == 'upstream'),
                   TilePolicy.parse(settings.tiles, **_given(policy)), settings.max_tiles)

    def what_decides_tiles(self) -> Dict[str, Any]:
        """Everything here that decides an image's tiles, ready for JSON: answers that were
        computed with different values are not comparable."""
        return {
            **dataclasses.asdict(self.policy), 'max_tiles': self.max_tiles,
            'pixels': 'upstream' if self.rules.upstream else 'fast'
        }


def _given(values: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
