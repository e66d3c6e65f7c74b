"""What `bench-prefix` measures: the scenarios, and how much of each."""
from dataclasses import dataclass
from typing import Dict, Tuple

# The prefix cache; the last one without the vision encoder's feature cache, which all others have.
OFF, ON, ON_ALONE = 'off', 'on', 'on, no feature cache'
CACHES = (OFF, ON, ON_ALONE)
# Scenarios: several questions about one image, one instruction before many images, and images that
# have nothing in common.
QUESTIONS, INSTRUCTION, UNIQUE = 'questions', 'instruction', 'unique'
SCENARIOS = (QUESTIONS, INSTRUCTION, UNIQUE)

QUESTIONS_AN_IMAGE = 8
INSTRUCTION_TOKENS = 1000
TEXT_TOKENS = 67  # of a short request, beside those of its image
SMALL = (480, 320)  # pixels of an image of one or two tiles


@dataclass(frozen=True)
class Scope:
    """How much is measured.

    Attributes:
        large: width and height of the images that are asked several questions.
        large_images: of them in a round.
        images: in a round of the other scenarios.
        concurrency: requests in flight there.
        kv_tokens: that the KV cache of either engine holds.
        rounds: each with images of its own, the engines in turn.
    """
    large: Tuple[int, int]
    large_images: int
    images: int
    concurrency: int
    kv_tokens: int
    rounds: int = 3


# 1792x1344 is stock's 12 tiles and a thumbnail, and ours
FULL: Dict[str, Scope] = {
    'cuda': Scope((1792, 1344), large_images=2, images=256, concurrency=64, kv_tokens=1 << 18),
    'cpu': Scope((896, 896), large_images=3, images=64, concurrency=8, kv_tokens=1 << 15)
}
QUICK: Dict[str, Scope] = {
    'cuda': Scope((1792, 1344), large_images=1, images=64, concurrency=32, kv_tokens=1 << 17,
                  rounds=1),
    'cpu': Scope((896, 448), large_images=1, images=8, concurrency=4, kv_tokens=1 << 14, rounds=1)
}
