"""The import hook: runs the session's checks before LMDeploy and its patches after each module.

The `.pth` line comes here whenever Python starts, so this file imports next to nothing; the
session and the catalogue are loaded when `lmdeploy` is.
"""
import sys
import threading

PACKAGE = 'lmdeploy'


class PatchFinder:
    """A meta path finder that finds nothing itself: it wraps what the other finders find.

    It keeps no state, so looking a module up uses nothing up: what counts is that the module is
    executed, be it the first time, after a failed attempt, or by `importlib.reload`.
    """

    def find_spec(self, name, path=None, target=None):
        """The spec of a module of LMDeploy with a loader that patches, None for any other."""
        if name != PACKAGE and not name.startswith(PACKAGE + '.'):
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, 'find_spec', None)
            spec = find_spec(name, path, target) if finder is not self and find_spec else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader)
                return spec
        return None


class _PatchingLoader:
    """A loader that has the session act when a module is executed; otherwise the module's own."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        from lmdeploy_ext.patching.session import session

        # the module is to have the loader that it has without us
        module.__spec__.loader = module.__loader__ = self._loader
        # rather than deadlock, importlib shows threads that import LMDeploy at the same time a
        # package whose checks are still going on: then the first to come makes them
        if module.__name__ == PACKAGE or session.plan is None:
            session.verify()
        self._loader.exec_module(module)
        session.module_has_run(module)


_finder = PatchFinder()
_lock = threading.RLock()


def armed() -> bool:
    """Whether an import of LMDeploy in this process is patched."""
    return _finder in sys.meta_path


def arm() -> None:
    """Have LMDeploy patched when it is imported, or now if it has been. Twice is once.

    Raises:
        PatchImportError: LMDeploy has been imported and cannot be patched.
        PatchError: a patch does not fit.
    """
    with _lock:
        if armed():
            return
        if PACKAGE in sys.modules:
            _arm_late()
        else:
            sys.meta_path.insert(0, _finder)


def unapply_all() -> None:
    """Put back every original and leave the import system, so that nothing more is patched.

    What a seam has registered stays. `arm` starts anew.
    """
    from lmdeploy_ext.patching.session import session
    with _lock:
        if armed():
            sys.meta_path.remove(_finder)
        session.undo()


def _arm_late() -> None:
    from lmdeploy_ext.patching.session import session
    session.verify()
    sys.meta_path.insert(0, _finder)
    try:
        session.catch_up()
    except BaseException:
        unapply_all()  # half patched is worse than not patched
        raise
