"""The patch layer: declare what is changed upstream, check it, apply it, undo it, list it.

`patch` and `seam` declare, `arm` and `unapply_all` switch, `status` and `settings_in_force` tell.
Names are loaded on first use: the `.pth` line imports this package whenever Python starts, and
that must cost nothing.
"""
import importlib

_HOMES = {
    'patch': 'declaration',
    'seam': 'declaration',
    'Patch': 'declaration',
    'Seam': 'declaration',
    'PatchError': 'errors',
    'PatchImportError': 'errors',
    'arm': 'finder',
    'unapply_all': 'finder',
    'settings_in_force': 'report',
    'status': 'report',
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
