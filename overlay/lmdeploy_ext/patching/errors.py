"""What goes wrong in the patch layer; every message is one line: found, expected, what to do next."""


class PatchError(Exception):
    """A patch is declared wrongly, or cannot be applied."""


class PatchImportError(PatchError, ImportError):
    """LMDeploy must not be imported with these patches: wrong release, unknown name, source that has drifted."""
