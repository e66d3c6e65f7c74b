"""The error of this package."""
from lmdeploy_ext.classify.errors import ClassifyError


class EvalError(ClassifyError):
    """An evaluation cannot start or go on; the message is one line: found, expected, to do."""
