"""What can go wrong, by whom it concerns: the whole run, or one image."""
from lmdeploy_ext.vl.image_errors import UnreadableImage


class ClassifyError(Exception):
    """The run cannot start or go on. The message is one line: found, expected, what to do."""


class SourceError(ClassifyError):
    """The images cannot be listed: nothing there, a broken manifest, duplicate ids."""


class LabelError(ClassifyError):
    """The labels cannot be told apart by the first token of an answer."""


class OutputError(ClassifyError):
    """The result file cannot be written, or holds rows of another run."""


class EngineError(ClassifyError):
    """The engine cannot be started or reached, or cannot answer any image."""


class ImageError(Exception):
    """This image has no answer; others are not affected. The message is the row's `error`."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """The exception's message on one line, with its type where the message alone says little."""
    text = ' '.join(str(error).split())
    if not isinstance(error, (ClassifyError, ImageError, UnreadableImage)):
        name = type(error).__name__
        text = f'{name}: {text}' if text else name
    return text if len(text) <= limit else text[:limit - 1] + '…'
