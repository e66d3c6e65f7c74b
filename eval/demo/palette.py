"""Colours that go together. Everything is RGB, 0 to 255."""
import colorsys

import numpy as np

WOODS = ((176, 132, 88), (143, 98, 62), (203, 164, 118), (110, 78, 56), (222, 196, 158), (92, 66,
                                                                                          52))
PAINTS = ((236, 236, 232), (206, 210, 214), (120, 128, 138), (84, 96, 110), (228, 218, 200),
          (70, 74, 80))
METALS = ((92, 98, 108), (150, 156, 162), (60, 64, 70), (196, 200, 204), (54, 84, 120))
LINENS = ((246, 244, 238), (240, 236, 224), (232, 238, 244), (250, 248, 246))
FLOORS = ((186, 150, 110), (160, 122, 86), (206, 178, 140), (172, 170, 164), (146, 148, 150),
          (128, 96, 72), (198, 194, 184))


def pick(rng: np.random.Generator, colours) -> tuple:
    """One of `colours`, a little changed."""
    base = np.array(colours[rng.integers(len(colours))], float)
    return tuple(np.clip(base * rng.uniform(0.93, 1.05) + rng.normal(0, 3, 3), 0, 255))


def hue(rng: np.random.Generator, saturation=(0.25, 0.65), value=(0.45, 0.85)) -> tuple:
    """A fabric or paint of any hue."""
    rgb = colorsys.hsv_to_rgb(rng.random(), rng.uniform(*saturation), rng.uniform(*value))
    return tuple(255 * c for c in rgb)


def wall(rng: np.random.Generator) -> tuple:
    """A pale wall colour."""
    return hue(rng, (0.03, 0.28), (0.74, 0.95))


def shade(colour, factor: float) -> tuple:
    """`colour`, darker (factor below 1) or lighter."""
    return tuple(min(255.0, c * factor) for c in colour)


def mix(a, b, part: float) -> tuple:
    """`part` of `b` in `a`."""
    return tuple((1 - part) * x + part * y for x, y in zip(a, b))
