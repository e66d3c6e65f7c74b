"""Upstream's own image functions, unpatched: what every figure is compared with."""
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List

import lmdeploy.vl.utils
import numpy as np
import torch
from lmdeploy.vl.model.internvl import InternVLVisionModel
from PIL import Image
from transformers import AutoConfig

from ...models import register
from ...patching import status
from ...patching.selection import VARIABLE
from ..errors import EvalError
from .sample import Sample
from .scope import STOCK

MODEL = Path(__file__).parents[1] / 'demo' / 'model'
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VISION_MEMORY = 2**30  # bytes; the demo model's vision part has a few million


class Stock:
    """LMDeploy's `load_image`, and `forward` of a vision model that LMDeploy built, up to where
    the ViT begins.

    The model is the demo's: its tiles, 12 and a thumbnail of side 448, are InternVL2's. Its ViT is
    taken out, so `forward` ends with the normalised float16 tensor that it hands to the device.
    """
    name = STOCK

    def __init__(self) -> None:
        """Raises EvalError where LMDeploy is patched in this process."""
        patched = [row['name'] for row in status()
                   if row['kind'] == 'patch' and row['state'] in ('applied', 'ready')]
        if patched:
            raise EvalError(f'LMDeploy is to be stock but has patches here '
                            f'({", ".join(patched)}); start the process with {VARIABLE}=none')
        register()
        logging.getLogger('lmdeploy').setLevel(logging.ERROR)
        self._vision = InternVLVisionModel(str(MODEL), max_memory={'cpu': VISION_MEMORY},
                                           hf_config=AutoConfig.from_pretrained(MODEL))
        self._vision.model = SimpleNamespace(device=torch.device('cpu'),
                                             extract_feature=lambda pixels: pixels)
        self._preprocess = self._vision._preprocess_v1_5
        self._vision._preprocess_v1_5 = self._timed_preprocess
        self._last = threading.local()

    def prepare(self, path: Path, keep: bool = False) -> Sample:
        """One image from a file to what the device gets; `keep`: the tiles' pixels are wanted."""
        start = time.perf_counter()
        image = lmdeploy.vl.utils.load_image(str(path))
        decoded = time.perf_counter()
        values, = self._vision.forward([image])
        end = time.perf_counter()
        side = values.shape[-1]
        return Sample(decoded - start, self._last.seconds, end - decoded - self._last.seconds,
                      len(values) // (3 * side), self.tiles(image) if keep else None)

    def tiles(self, image: Image.Image) -> np.ndarray:
        """The tiles of an RGB image, uint8 `[tiles, 448, 448, 3]`."""
        values = self._preprocess([image])[0].permute(0, 2, 3, 1).numpy()
        # Exact: before the normalisation the pixels were whole numbers.
        return np.rint((values * np.float32(STD) + np.float32(MEAN)) * 255).astype(np.uint8)

    def _timed_preprocess(self, *arguments: Any) -> List[torch.Tensor]:
        """Upstream's `_preprocess_v1_5`, inside its `forward`; keeps its time for this thread."""
        start = time.perf_counter()
        values = self._preprocess(*arguments)
        self._last.seconds = time.perf_counter() - start
        return values
