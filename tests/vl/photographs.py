"""Synthetic photographs, and how near two pictures are."""
import cv2
import numpy as np


def photograph(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Shapes with sharp edges and shading under a lens's blur and a sensor's noise: uint8
    [height, width, 3], detailed as a photograph is at its own size, whatever the size."""
    rng = np.random.default_rng(seed)
    shade = rng.uniform(0, 255, (5, 5, 3)).astype(np.float32)
    picture = cv2.resize(shade, (width, height), interpolation=cv2.INTER_LINEAR)
    for _ in range(60):
        centre = rng.uniform(0, (width, height)).astype(int).tolist()
        axes = (1 + rng.exponential((width / 12, height / 12))).astype(int).tolist()
        cv2.ellipse(picture, centre, axes, rng.uniform(0, 180), 0, 360,
                    rng.uniform(0, 255, 3).tolist(), -1)
    picture = cv2.GaussianBlur(picture, (0, 0), 0.8) + rng.normal(0, 1, (height, width, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal-to-noise ratio of uint8 pictures in dB; infinite where they are equal."""
    error = np.mean((one.astype(np.float64) - other)**2)
    return float('inf') if error == 0 else float(10 * np.log10(255**2 / error))
