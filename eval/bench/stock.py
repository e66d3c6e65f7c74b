"""Upstream's own image functions, unpatched: what every figure is compared with."""
import logging
import time
from pathlib import Path
from typing import Union

import lmdeploy.vl.utils
import numpy as np
from lmdeploy.vl.model.internvl import InternVLVisionModel
from PIL import Image
from transformers import AutoConfig

from ...models import register
from ..errors import EvalError
from .sample import Sample
from .scope import STOCK

MODEL = Path(__file__).parents[1] / 'demo' / 'model'
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VISION_MEMORY = 2**30  # bytes; the demo model's vision part has a few million


class Stock:
    """LMDeploy's `load_image`, and `_preprocess_v1_5` of a vision model that LMDeploy built.

    The model is the demo's: its tiles, 12 and a thumbnail of side 448, are InternVL2's. The result
    is a normalised float32 tensor, as the vision model asks for it.
    """
    name = STOCK

    def __init__(self) -> None:
        """Raises EvalError where LMDeploy is patched in this process."""
        self.decode = lmdeploy.vl.utils.load_image
        self._preprocess = InternVLVisionModel._preprocess_v1_5
        if any(hasattr(own, '__wrapped__') for own in (self.decode, self._preprocess)):
            raise EvalError('the functions that should be stock are patched in this process; '
                            'start it with LMDEPLOY_EXT_PATCHES=none')
        register()
        logging.getLogger('lmdeploy').setLevel(logging.ERROR)
        self._model = InternVLVisionModel(str(MODEL), max_memory={'cpu': VISION_MEMORY},
                                          hf_config=AutoConfig.from_pretrained(MODEL))

    def prepare(self, path: Path, keep: bool = False) -> Sample:
        """One image from a file to tiles; `keep`: the tiles' pixels are wanted."""
        start = time.perf_counter()
        image = self.decode(str(path))
        decoded = time.perf_counter()
        values = self._tensor(image)
        end = time.perf_counter()
        return Sample(decoded - start, end - decoded, len(values),
                      _pixels(values) if keep else None)

    def tiles(self, image: Union[str, Image.Image]) -> np.ndarray:
        """The tiles of an RGB image, uint8 `[tiles, 448, 448, 3]`."""
        return _pixels(self._tensor(image))

    def _tensor(self, image: Image.Image):
        """Upstream's tiles, float32 `[tiles, 3, 448, 448]`, normalised."""
        return self._preprocess(self._model, [image], [{}])[0]


def _pixels(values) -> np.ndarray:
    """Undo the normalisation; exact, since the pixels were whole numbers."""
    values = values.permute(0, 2, 3, 1).numpy()
    return np.rint((values * np.float32(STD) + np.float32(MEAN)) * 255).astype(np.uint8)
