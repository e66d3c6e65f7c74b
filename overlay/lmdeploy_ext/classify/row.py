"""One line of a result file."""
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Mapping, Optional


@dataclass(frozen=True)
class Verdict:
    """What was found out about an image; the same for each copy of the file.

    Attributes:
        label: the most probable label.
        probabilities: of each label against the others.
        text: the answer as generated; where it begins with no label, the model did not follow the
            prompt.
        input_tokens: prompt and image.
        output_tokens: generated.
        cached_tokens: see `Answer`. It depends on what the engine was asked before, so rows, which
            are the same for an interrupted run and for one that was not, do not have it.
    """
    label: str
    probabilities: Mapping[str, float]
    text: str
    input_tokens: int
    output_tokens: int
    cached_tokens: Optional[int] = None


@dataclass(frozen=True)
class Row:
    """One image's result.

    Attributes:
        id, path: as the source names the image.
        label to output_tokens: see `Verdict`; all None where `error` is not.
        seconds: from the image's admission to its answer: reading, decoding and waiting included.
        error: why there is no label, in one line; None where there is one.
    """
    id: str
    path: str
    label: Optional[str]
    probabilities: Optional[Dict[str, float]]
    text: Optional[str]
    input_tokens: Optional[int]
    output_tokens: Optional[int]
    seconds: float
    error: Optional[str]

    def to_line(self) -> bytes:
        """JSON in UTF-8 with a newline."""
        return encode_line(asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> 'Row':
        """A row from its JSON object.

        Raises:
            ValueError: a field is missing, or there is none of that name.
        """
        names = [field.name for field in fields(cls)]
        if set(record) != set(names):
            raise ValueError(f'fields {", ".join(record)}; expected {", ".join(names)}')
        return cls(**record)


def answered(id_: str, path: str, verdict: Verdict, seconds: float) -> Row:
    """The row of an image that has a label."""
    return Row(id_, path, verdict.label, dict(verdict.probabilities), verdict.text,
               verdict.input_tokens, verdict.output_tokens, round(seconds, 4), None)


def failed(id_: str, path: str, error: str, seconds: float) -> Row:
    """The row of an image that has none."""
    return Row(id_, path, None, None, None, None, None, round(seconds, 4), error)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """A JSON object on one line, readable where UTF-8 can say it."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b'\n'
    except UnicodeEncodeError:
        # a file name that is not UTF-8 holds surrogates, which only an escape can keep
        return json.dumps(record, allow_nan=False).encode() + b'\n'
