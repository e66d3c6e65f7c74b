"""From the log-probabilities of an answer's first token to a probability of each label."""
import math
from typing import Dict, Mapping, Union

from .errors import ImageError
from .labels import Labels

# Asked of the engine for each answer. A label that is not among them is given the smallest of
# them, an upper bound; with 64 that is under 1/64 of the first one's probability in any case, and
# rare where the model has been told the labels.
TOP_LOGPROBS = 64
# Of the ninth digit on, float32 log-probabilities are noise.
_DIGITS = 9


def label_probabilities(logprobs: Mapping[Union[int, bytes], float],
                        labels: Labels,
                        text: str = '') -> Dict[str, float]:
    """Softmax of the labels' log-probabilities, over the labels alone; sums to 1.

    Args:
        logprobs: natural logarithms of the first answer token's probabilities by token id or by
            vocabulary piece; the most probable tokens, in any order. A constant added to all of
            them changes nothing.
        text: the answer, for the error message.

    Raises:
        ImageError: none of the labels is among them, or one is not a number.
    """
    found = [logprobs.get(label.token, logprobs.get(label.piece)) for label in labels.labels]
    if all(logprob is None for logprob in found):
        raise ImageError(
            f'the answer {text!r} is no label, nor is any among the {len(logprobs)} most '
            f'probable first tokens; word the prompt so that the model answers '
            f'{" or ".join(labels.names)}')
    bound = min(logprobs.values())
    values = [bound if logprob is None else logprob for logprob in found]
    top = max(values)
    if any(map(math.isnan, values)) or not math.isfinite(top):
        raise ImageError(f'the engine gave {values} as log-probabilities of the labels; '
                         f'expected numbers')
    weights = [math.exp(value - top) for value in values]
    total = sum(weights)
    return {
        name: float(f'{weight / total:.{_DIGITS}g}')
        for name, weight in zip(labels.names, weights)
    }


def most_probable(probabilities: Mapping[str, float]) -> str:
    """The most probable label; of equals the first."""
    return max(probabilities, key=probabilities.__getitem__)
