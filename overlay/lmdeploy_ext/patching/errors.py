"""What goes wrong in the patch layer. Every message is one line: found, expected, what to do."""


class PatchError(Exception):
    """A patch is declared wrongly, or cannot be applied.

    Not an ImportError: upstream falls back quietly where an import of its own modules fails.
    """


class PatchImportError(PatchError, ImportError):
    """LMDeploy cannot be imported patched: wrong release, unknown name, or drifted source."""
