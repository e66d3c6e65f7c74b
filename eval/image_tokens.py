"""How many tokens images make, from the input tokens of stored rows.

A row counts the whole input, prompt included. The prompt is the same text for every image of a
run, so its tokens are what is left of an image that is known to be one tile.
"""
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Optional

from lmdeploy_ext.classify import Row


@dataclass(frozen=True)
class InputTokens:
    """Input tokens of a variant's answered test images, the prompt included."""
    mean: float
    least: int
    most: int


def input_tokens(rows: Iterable[Row]) -> Optional[InputTokens]:
    """Of rows with an answer; None where there are none."""
    counts = [row.input_tokens for row in rows if row.error is None]
    if not counts:
        return None
    return InputTokens(sum(counts) / len(counts), min(counts), max(counts))


def tile_tokens(model: str) -> Optional[int]:
    """Tokens of a tile of an InternVL2 checkpoint, by its config.json; None for another sort of
    model. Imports nothing, for models that upstream knows and this project does not."""
    config = json.loads(Path(model, 'config.json').read_text(encoding='utf-8'))
    vision = config.get('vision_config', {})
    if config.get('model_type') != 'internvl_chat' or 'downsample_ratio' not in config:
        return None
    side, patch = config.get('force_image_size') or vision.get('image_size'), vision.get(
        'patch_size')
    if not side or not patch:
        return None
    return int((side // patch)**2 * config['downsample_ratio']**2)
