"""An image that is read and planned, before any of its pixels is decoded."""
from dataclasses import dataclass
from typing import Optional, Tuple, Union

import numpy as np

from lmdeploy_ext.vl.admission import Place
from lmdeploy_ext.vl.image_header import ImageHeader
from lmdeploy_ext.vl.tiling import TilePlan


@dataclass(frozen=True)
class ImageContent:
    """What a reference leads to.

    Attributes:
        content: encoded, or uint8 RGB [h, w, 3].
        header: None where the content is pixels.
        key: of the content (`vision.content_key`); None where it was not asked for.
    """
    content: Union[bytes, np.ndarray]
    header: Optional[ImageHeader]
    key: Optional[bytes] = None

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height in pixels, after the orientation."""
        if self.header is None:
            return self.content.shape[1], self.content.shape[0]
        return self.header.width, self.header.height


class OpenedImage:
    """An image of a request whose tiles are decided, and not made yet.

    It holds its place among the images in work until `ImageLoader.cut` takes that over, `release`
    is called, or nobody holds the image any more.

    Attributes:
        plan: the tiles it is to be cut into.
    """

    def __init__(self, source: ImageContent, plan: TilePlan, place: Optional[Place]) -> None:
        self.source, self.plan = source, plan
        self._place = place

    @property
    def content(self) -> Union[bytes, np.ndarray]:
        """Encoded, or uint8 RGB [h, w, 3]; not to be written to."""
        return self.source.content

    @property
    def header(self) -> Optional[ImageHeader]:
        """None where the content is pixels."""
        return self.source.header

    @property
    def key(self) -> Optional[bytes]:
        """The content's key; None where the image was opened without."""
        return self.source.key

    def take_place(self) -> Optional[Place]:
        """The place that it holds, for whoever goes on with it; None where it holds none."""
        place, self._place = self._place, None
        return place

    def release(self) -> None:
        """Free the place: the features are known, or nobody wants them. Again, or after `cut`, it
        does nothing; an image that is cut all the same is cut without a place."""
        place = self.take_place()
        if place is not None:
            place.free()
