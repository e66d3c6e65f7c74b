"""Where the image stands in a prompt: before the text, or behind it.

LMDeploy's chat templates put images before a message's text, whatever the order of the message's
parts, unless the text says itself where they stand (vl/templates.py, `append_image_token`; the
same in 0.6.0 to 0.6.4, and in its server). Where the text stands first and all images of a run
share it, its KV blocks are the same for all of them, and a prefix cache keeps them.
"""
import json
from pathlib import Path
from typing import Optional

from lmdeploy_ext.vl.messages import IMAGE_TOKEN

from .errors import EngineError, SourceError

# by `model_type` of config.json. Others take no notice of the place (CogVLM, GLM-4V, Mllama), or
# look for it in their own way (MiniCPM-V: an image at the end is not seen at all).
_KEEP_THE_PLACE = ('internvl_chat', 'llava', 'llava_llama', 'llava_next', 'qwen2_vl')


def image_last(text: str) -> str:
    """The text with the place of its image behind it."""
    return f'{text}\n{IMAGE_TOKEN}'


def check_no_place(text: Optional[str], whose: str) -> None:
    """Check that a text leaves open where its image stands.

    Raises:
        SourceError: it does not.
    """
    if text and IMAGE_TOKEN in text:
        raise SourceError(f'--prompt-first with {IMAGE_TOKEN} in {whose}; expected one of them to '
                          f'say where the image stands: leave the other one out')


def check_keeps_place(folder: str) -> None:
    """Check that the chat template of a model puts an image where a text says.

    Args:
        folder: with the model's config.json.

    Raises:
        EngineError: it does not, or nobody has looked.
    """
    file = Path(folder, 'config.json')
    config = json.loads(file.read_text(encoding='utf-8')) if file.is_file() else {}
    if config.get('model_type') not in _KEEP_THE_PLACE:
        raise EngineError(f'--prompt-first with a model of the type {config.get("model_type")!r}; '
                          f'expected one whose images may stand anywhere, '
                          f'{", ".join(_KEEP_THE_PLACE)}: leave it out')
