"""InternVL's vision model from uint8 tiles: they travel as bytes and become floats on its device.

Upstream resizes, cuts and normalises in the one thread that also runs the vision model, and sends
floats. Here the tiles come prepared from other threads (`image_loader`).
"""
from typing import Any, List, Mapping, Optional, Sequence

import torch

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.image_loader import ImageLoader
from lmdeploy_ext.vl.prepared import PreparedImage

# of ImageNet's pixels, 0 to 1; upstream normalises with them
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LOADER = '_image_loader'


def loader_of(vision: Any) -> Optional[ImageLoader]:
    """The loader of a vision model, made when first asked for.

    Returns:
        None where the model is not InternVL with dynamic tiles (`_forward_v1_5`).
    """
    if _LOADER not in vars(vision):
        loader = None
        if _takes_tiles(vision):
            pinned = vision.model.device.type == 'cuda'
            loader = ImageLoader.from_settings(vision.config, Settings.from_env(), pinned)
        setattr(vision, _LOADER, loader)
    return vars(vision)[_LOADER]


def _takes_tiles(vision: Any) -> bool:
    used = getattr(vision, '_forward_func', None)
    return used is not None and used.__func__ is getattr(type(vision), '_forward_v1_5', None)


def encode(vision: Any, images: Sequence[Any],
           options: Optional[Sequence[Mapping[str, Any]]] = None) -> List[torch.Tensor]:
    """The features of images.

    Args:
        vision: an `InternVLVisionModel` that has a loader.
        images: `PreparedImage`s, which are released once the device has their tiles, or anything
            that its loader takes, which is prepared now.
        options: for images that are not prepared, as `ImageLoader.load` takes them.

    Returns:
        for each image [tokens, hidden], in the model's dtype, on its device.

    Raises:
        UnreadableImage: an image that came unprepared cannot be used.
    """
    prepared = _prepared(loader_of(vision), images, options or [{}] * len(images))
    try:
        features = _encode(vision.model, prepared)
    except Exception:
        # after a failure a batch is tried again image by image, and needs its tiles then
        if len(prepared) == 1:
            prepared[0].release()
        raise
    for image in prepared:
        image.release()
    return features


def _prepared(loader: ImageLoader, images: Sequence[Any],
              options: Sequence[Mapping[str, Any]]) -> List[PreparedImage]:
    raw = [index for index, image in enumerate(images) if not isinstance(image, PreparedImage)]
    prepared = list(images)
    made = loader.prepare([images[index] for index in raw], [options[index] for index in raw])
    for index, image in zip(raw, made):
        prepared[index] = image
    return prepared


def _encode(model: torch.nn.Module, images: Sequence[PreparedImage]) -> List[torch.Tensor]:
    counts = [len(image.tiles) for image in images]
    tiles = torch.empty((sum(counts), *images[0].tiles.shape[1:]), dtype=torch.uint8,
                        device=model.device)
    for part, image in zip(tiles.split(counts), images):
        part.copy_(torch.from_numpy(image.tiles), non_blocking=True)
    copied = None
    if tiles.is_cuda:
        copied = torch.cuda.current_stream(tiles.device).record_event()
    features = model.extract_feature(normalise(tiles, model.dtype))  # [tiles, tokens, hidden]
    if copied is not None:
        # the host memory is free for other images from here on; the model still runs
        copied.synchronize()
    return [feature.flatten(0, 1) for feature in features.split(counts)]


def normalise(tiles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Pixels as the vision model takes them.

    Computed in float32 and rounded once: in float16 the result would be off by up to 1e-3.

    Args:
        tiles: uint8 [tiles, side, side, 3].

    Returns:
        [tiles, 3, side, side] in one piece.
    """
    pixels = tiles.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return torch.addcmul(-mean / std, pixels, 1 / (255 * std)).to(dtype)
