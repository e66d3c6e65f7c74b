"""Images for tests, and what a model is to get of them, computed without LMDeploy's classes."""
from typing import List

import numpy as np
import torch
from lmdeploy.vl.model.internvl import dynamic_preprocess
from PIL import Image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(seed: int, width: int, height: int) -> Image.Image:
    """A smooth random RGB image."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def pixel_values(images: List[Image.Image], config) -> torch.Tensor:
    """The tiles of all images, cut by upstream's rule: [tiles, 3, side, side] float32."""
    side = config.vision_config.image_size
    tiles = [tile for image in images
             for tile in dynamic_preprocess(image.convert('RGB'), config.min_dynamic_patch,
                                            config.max_dynamic_patch, side, config.use_thumbnail)]
    values = np.stack([np.asarray(tile, np.float32) for tile in tiles]) / np.float32(255)
    values = (values - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(values.transpose(0, 3, 1, 2).copy())
