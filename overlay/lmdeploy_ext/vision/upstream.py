"""The checkpoint's own vision model, for those who want stock's."""
from typing import Sequence

import torch
from torch import nn

from lmdeploy_ext.vision.backend import VisionBackend, check, fill
from lmdeploy_ext.vl.internvl import normalise


class UpstreamBackend(VisionBackend):
    """Runs `extract_feature` of an InternVL model, ours or of a checkpoint's own code.

    Args:
        model: an `InternVLChatModel`; its language model need not be there.
        max_tiles: in one call.
    """

    def __init__(self, model: nn.Module, max_tiles: int):
        config, projector = model.config, model.mlp1[-1].weight
        self.device, self.dtype = model.device, projector.dtype
        self.side = getattr(config, 'force_image_size', None) or config.vision_config.image_size
        grid = self.side // config.vision_config.patch_size
        self.tokens = round((grid * config.downsample_ratio)**2)
        self.hidden = len(projector)
        self.max_tiles = max_tiles
        self._model = model

    @torch.no_grad()
    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """As `VisionBackend.encode`.

        Raises:
            ValueError: `tiles` or `out` are not what the backend takes.
        """
        check(self, tiles, out)
        fill(out, self._model.extract_feature(normalise(tiles, self.dtype)))
