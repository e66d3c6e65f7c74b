"""The error of this package."""


class EvalError(ValueError):
    """An evaluation cannot start or go on; the message is one line that says what to do."""
