"""Images and texts that nobody has seen before: drawn from seeds."""
from typing import Any, Callable, Dict, List, Sequence, Tuple

import cv2
import numpy as np

SYSTEM = 'Answer in short.'
_SHAPES = 24
_QUALITY = 90
_WORDS = ('the a room photo bed window door wall lamp chair table floor roof plant mirror bath '
          'kitchen shop sign street car tree person light dark red green blue white black large '
          'small left right above below near behind two three four many few some clean old new '
          'open closed is are shows has looks at with without and or not what where which how '
          'count name describe compare find').split()


def jpeg(seed: Sequence[int], size: Tuple[int, int]) -> bytes:
    """A JPEG file of rectangles and ellipses.

    Args:
        seed: numbers from 0; others give another image.
        size: width and height in pixels.
    """
    width, height = size
    draw = np.random.default_rng(list(seed))
    image = np.full((height, width, 3), draw.integers(256, size=3), np.uint8)
    for number in range(_SHAPES):
        centre = tuple(draw.integers(size).tolist())
        half = tuple(draw.integers(4, 4 + np.array(size) // 4).tolist())
        colour = tuple(draw.integers(256, size=3).tolist())
        if number % 2:
            cv2.ellipse(image, centre, half, int(draw.integers(180)), 0, 360, colour, -1)
        else:
            corners = [[middle - side, middle + side] for middle, side in zip(centre, half)]
            cv2.rectangle(image, *zip(*corners), colour, -1)
    return cv2.imencode('.jpg', image, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes()


def text(seed: Sequence[int], tokens: int, count: Callable[[str], int]) -> str:
    """Words in an order of their own, the fewest that make so many tokens.

    Args:
        seed: numbers from 0; others give another text.
        count: tokens of a text.
    """
    draw = np.random.default_rng(list(seed))
    words = [_WORDS[index] for index in draw.integers(len(_WORDS), size=tokens)]
    few, many = 1, len(words)
    while few < many:
        half = (few + many) // 2
        if count(' '.join(words[:half])) < tokens:
            few = half + 1
        else:
            many = half
    return ' '.join(words[:few])


def messages(picture: bytes, question: str) -> List[Dict[str, Any]]:
    """A request about an encoded image, as `lmdeploy.pipeline` takes it.

    Args:
        question: with LMDeploy's image token in it where the image is not to stand in front.
    """
    return [{'role': 'system', 'content': SYSTEM},
            {'role': 'user', 'content': [{'type': 'text', 'text': question},
                                         {'type': 'image_data', 'image_data': {'data': picture}}]}]
