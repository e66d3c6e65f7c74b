"""LMDeploy's tokenizer and chat template of a model, without the model."""
import difflib
import os
from functools import cached_property
from pathlib import Path
from typing import Any, List, Optional

from .errors import EngineError, LabelError


def chat_template_config(name: str) -> Any:
    """LMDeploy's `ChatTemplateConfig` of a template name or of a JSON file, as its own
    `--chat-template` takes them.

    Raises:
        EngineError: there is no such template.
    """
    from lmdeploy.model import MODELS, ChatTemplateConfig
    if os.path.isfile(name):
        return ChatTemplateConfig.from_json(name)
    if name not in MODELS.module_dict:
        close = difflib.get_close_matches(name, MODELS.module_dict, n=1)
        hint = f'did you mean {close[0]}?' if close else 'see `lmdeploy list`'
        raise EngineError(
            f'unknown chat template {name!r}; expected a name that LMDeploy knows or '
            f'a JSON file: {hint}')
    return ChatTemplateConfig(name)


class ModelTokenizer:
    """Tokenizer of a model folder, in the context that the chat template puts before an answer.

    The context matters: alone, a word may be encoded with a leading space that it does not have
    after `assistant\\n`.

    Args:
        folder: the model's folder; only tokenizer files and config.json are read.
        chat_template: name or JSON file; None to choose as LMDeploy does.

    Raises:
        EngineError: there is no tokenizer, or no chat template for this model.
    """

    def __init__(self, folder: str, chat_template: Optional[str] = None) -> None:
        # LMDeploy imports torch, which takes seconds: cheaper checks come first
        from lmdeploy.tokenizer import Tokenizer
        self._folder = folder
        self._template_name = chat_template
        try:
            self._tokenizer = Tokenizer(folder).model
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EngineError(f'no usable tokenizer in {folder} ({_first_line(error)}); expected '
                              f'tokenizer.json or tokenizer.model and config.json') from error
        self._context_ids = self._encode(self._context)

    @cached_property
    def _context(self) -> str:
        """What the model reads before it answers; the question itself does not matter."""
        from lmdeploy.model import ChatTemplateConfig, best_match_model
        if self._template_name is not None:
            config = chat_template_config(self._template_name)
        else:
            name = best_match_model(self._folder)
            if name in (None, 'base'):
                raise EngineError(f'no chat template is known for {self._folder}; give '
                                  f'--chat-template, for example internvl2-internlm2 (see '
                                  f'`lmdeploy list`)')
            config = ChatTemplateConfig(name)
        return config.chat_template.messages2prompt([{'role': 'user', 'content': '?'}])

    def answer_tokens(self, answer: str) -> List[int]:
        """Token ids of `answer` at the start of the assistant's turn.

        Raises:
            LabelError: the answer merges with the context, so that it has no tokens of its own.
        """
        ids = self._encode(self._context + answer)
        start = len(self._context_ids)
        if ids[:start] != self._context_ids or len(ids) == start:
            raise LabelError(f'the label {answer!r} has no token of its own after '
                             f'{self._context[-12:]!r}; choose another label, or the right '
                             f'--chat-template')
        return ids[start:]

    def piece(self, token: int) -> bytes:
        """The token as it stands in the vocabulary, as LMDeploy's server spells it."""
        hf_tokenizer = self._tokenizer.model
        piece = hf_tokenizer.convert_ids_to_tokens(token)
        return piece if isinstance(piece, bytes) else piece.encode()

    def _encode(self, text: str) -> List[int]:
        return list(self._tokenizer.encode(text, add_bos=True))


def has_tokenizer(folder: str) -> bool:
    """Whether a folder holds tokenizer files."""
    names = ('tokenizer.json', 'tokenizer.model', 'tokenizer_config.json')
    return any(Path(folder, name).is_file() for name in names)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition('\n')[0][:200]
