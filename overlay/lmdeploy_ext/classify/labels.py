"""The labels: parsed from the command line, and told apart by the first token of an answer."""
import re
from dataclasses import dataclass
from typing import Dict, List, Protocol, Tuple

from .errors import LabelError


class AnswerTokenizer(Protocol):
    """How a model's tokenizer spells an answer."""

    def answer_tokens(self, answer: str) -> List[int]:
        """Token ids of `answer` where the assistant's turn begins."""

    def piece(self, token: int) -> bytes:
        """The token as it stands in the vocabulary; what a server names it by."""


@dataclass(frozen=True)
class Label:
    """One possible answer.

    Attributes:
        name: the answer's text.
        token: id of its first token.
        piece: the same token as it stands in the vocabulary.
        length: its tokens.
    """
    name: str
    token: int
    piece: bytes
    length: int


@dataclass(frozen=True)
class Labels:
    """Two or more labels with different first tokens."""
    labels: Tuple[Label, ...]

    @property
    def names(self) -> Tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @property
    def longest(self) -> int:
        """Tokens of the longest label."""
        return max(label.length for label in self.labels)


def parse_labels(text: str) -> Tuple[str, ...]:
    """Label names from `yes,no`; the full-width comma separates too.

    Raises:
        LabelError: an empty or a repeated label, or fewer than two.
    """
    names = tuple(name.strip() for name in re.split('[,，]', text))
    return check_names(names)


def check_names(names: Tuple[str, ...]) -> Tuple[str, ...]:
    """The names, where there are two or more, all different and none empty.

    Raises:
        LabelError: otherwise.
    """
    shown = ','.join(names)
    if not all(names):
        raise LabelError(f'an empty label in {shown!r}; expected for example yes,no')
    for name in names:
        if names.count(name) > 1:
            raise LabelError(f'the label {name!r} stands twice in {shown!r}; name each once')
    if len(names) < 2:
        raise LabelError(f'one label alone, {shown!r}; expected two or more, for example yes,no')
    return names


def resolve_labels(names: Tuple[str, ...], tokenizer: AnswerTokenizer) -> Labels:
    """Find each label's first answer token.

    Raises:
        LabelError: wrong names, or two labels that begin with the same token: the first answer
            token then cannot tell them apart.
    """
    by_token: Dict[int, Label] = {}
    for name in check_names(tuple(names)):
        tokens = tokenizer.answer_tokens(name)
        label = Label(name, tokens[0], tokenizer.piece(tokens[0]), len(tokens))
        other = by_token.setdefault(label.token, label)
        if other is not label:
            raise LabelError(
                f'the labels {other.name!r} and {name!r} begin with the same token '
                f'({label.piece.decode(errors="backslashreplace")!r}, id {label.token}), so the '
                f'first answer token cannot tell them apart; choose labels that differ from the '
                f'first token on, and word the prompt for them')
    return Labels(tuple(by_token.values()))
