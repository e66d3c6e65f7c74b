"""The patch layer: declare what is changed upstream, check it, apply it, undo it, list it.

`patch` and `seam` declare (see `declaration`); `arm` and `unapply_all` switch; `status` and `settings_in_force` report.
Names are loaded on first use: the `.pth` line imports this package whenever Python starts, and must cost nothing.
"""
import importlib

_HOME = {
    'Patch': 'declaration', 'Seam': 'declaration', 'patch': 'declaration', 'seam': 'declaration',
    'PatchError': 'errors', 'PatchImportError': 'errors',
    'arm': 'session', 'unapply_all': 'session',
    'status': 'status', 'settings_in_force': 'status',
}  # yapf: disable
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_HOME[name]}'), name)
