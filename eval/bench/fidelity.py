"""How near pixels are to upstream's."""
import math

import numpy as np


def psnr(pixels: np.ndarray, reference: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of uint8 arrays of one shape; infinite where equal."""
    if pixels.shape != reference.shape:
        raise ValueError(f'pixels of shape {pixels.shape} against {reference.shape}; '
                         f'expected the same tiles')
    difference = pixels.astype(np.float32) - reference
    error = float(np.mean(np.square(difference), dtype=np.float64))
    return 10 * math.log10(255**2 / error) if error else math.inf
