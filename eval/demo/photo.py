"""What a camera and an upload do to a picture: light, colour cast, blur, noise, JPEG."""
import cv2
import numpy as np


def light(rng: np.random.Generator, image: np.ndarray, daylight: float) -> np.ndarray:
    """A smooth gradient from the window's side, darker corners, and a colour cast."""
    height, width = image.shape[:2]
    y, x = np.mgrid[-1:1:24j, -1:1:24j]
    glow = 1 + rng.uniform(0.0, 0.16) * daylight * x - rng.uniform(0.0, 0.1) * y
    glow -= rng.uniform(0.0, 0.16) * (x * x + y * y)
    cast = rng.uniform(0.9, 1.06) * (1 + rng.normal(0, 0.03, 3))
    gain = (np.clip(glow[..., None] * cast, 0, 1.99) * 127).astype(np.uint8)
    gain = cv2.resize(gain, (width, height), interpolation=cv2.INTER_LINEAR)
    return cv2.multiply(image, gain, scale=1 / 127)


def tone(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Gamma and contrast."""
    levels = np.linspace(0, 1, 256)**rng.uniform(0.8, 1.3)
    contrast = rng.uniform(0.8, 1.1)
    levels = 0.5 + (levels - 0.5) * contrast + rng.normal(0, 0.02)
    return cv2.LUT(image, np.clip(levels * 255, 0, 255).astype(np.uint8))


def grain(rng: np.random.Generator, image: np.ndarray, sigma: float) -> np.ndarray:
    """Noise of standard deviation `sigma` grey levels, the same in all three channels."""
    if sigma < 0.5:
        return image
    height, width = image.shape[:2]
    raw = np.frombuffer(rng.bytes(2 * height * width), np.uint8).reshape(2, height, width)
    # the sum of two uniform variables over 0..255 has a standard deviation of 104.5
    noise = cv2.addWeighted(raw[0],
                            sigma / 104.5,
                            raw[1],
                            sigma / 104.5,
                            -255 * sigma / 104.5,
                            dtype=cv2.CV_16S)
    return cv2.add(image, cv2.merge([noise] * 3), dtype=cv2.CV_8U)


def photograph(rng: np.random.Generator, image: np.ndarray, daylight: float) -> bytes:
    """The JPEG file of a clean RGB picture, as a phone and a web site would leave it: quality 50
    to 95."""
    image = tone(rng, light(rng, image, daylight))
    blur = rng.uniform(0.0, 0.85)
    if blur > 0.3:
        image = cv2.GaussianBlur(image, (0, 0), blur)
    image = grain(rng, image, rng.uniform(0, 7))
    quality = int(rng.integers(50, 96))
    done, data = cv2.imencode('.jpg', cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
                              [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise RuntimeError(
            f'OpenCV could not encode a {image.shape} picture as JPEG; check the OpenCV build')
    return data.tobytes()
