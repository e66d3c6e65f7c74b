"""An image that cannot be encoded fails the request that it belongs to, and no other."""
import logging
from typing import Any, Callable, Dict, List, Optional

from lmdeploy_ext.vl.image_errors import UnreadableImage

logger = logging.getLogger(__name__)


class ImageFailed(RuntimeError):
    """An image could not be encoded; the message says why."""


class FailedImage:
    """Stands for the features of an image that could not be encoded: whoever uses them gets the
    error. It travels through upstream's queue, which knows results only."""

    def __init__(self, error: Exception):
        self._error = error

    def fail(self):
        """Raise the error.

        Raises:
            UnreadableImage: if that is the error, which says itself what the image is.
            ImageFailed: for any other.
        """
        error = self._error
        if isinstance(error, UnreadableImage):
            raise error
        reason = f'{type(error).__name__}: {error}'
        raise ImageFailed(f'the image cannot be encoded: {reason}') from error

    def __getattr__(self, name: str):
        self.fail()

    def __getitem__(self, key: Any):
        self.fail()


def encode_each(encode: Callable[[List[Any], Optional[List[Dict]]], List[Any]],
                images: List[Any],
                params: Optional[List[Dict]] = None) -> List[Any]:
    """Encode a batch, and where that fails each image on its own.

    Args:
        encode: images and their parameters -> features, one entry an image.
        images: at least one.
        params: one entry an image, or None.

    Returns:
        one entry an image, features or a `FailedImage`.
    """
    try:
        return encode(images, params)
    except Exception as error:  # whatever a model raises: it must reach one request, not the loop
        if len(images) == 1:
            logger.warning('an image cannot be encoded: %r', error)
            return [FailedImage(error)]
    return [encode_each(encode, [image], params and [params[index]])[0]
            for index, image in enumerate(images)]


def raise_failure(features: List[Any]) -> List[Any]:
    """The features of a request, if all of its images were encoded.

    Raises:
        ImageFailed, UnreadableImage: one was not.
    """
    for feature in features:
        if isinstance(feature, FailedImage):
            feature.fail()
    return features
