"""Find what `patches/` declares, and refuse a catalogue that contradicts itself."""
import importlib
import pkgutil
from typing import Iterable, List, Tuple, Union

from lmdeploy_ext.patching.declaration import Patch, Seam
from lmdeploy_ext.patching.errors import PatchError

CATALOGUE = 'lmdeploy_ext.patches'
Declaration = Union[Patch, Seam]


def discover(package: str = CATALOGUE) -> Tuple[Declaration, ...]:
    """Every patch and seam of a package, by name.

    Raises:
        PatchError: a file declares nothing or several things, or two patches change one symbol.
    """
    home = importlib.import_module(package)
    names = sorted(info.name for info in pkgutil.iter_modules(home.__path__))
    found = tuple(_only_declaration(f'{package}.{name}') for name in names)
    _require_one_patch_a_symbol([entry for entry in found if isinstance(entry, Patch)])
    return found


def find_patch(name: str, entries: Tuple[Declaration, ...]) -> Patch:
    """The patch of that name.

    Raises:
        PatchError: there is none.
    """
    patches = {entry.name: entry for entry in entries if isinstance(entry, Patch)}
    if name not in patches:
        raise PatchError(f'there is no patch {name!r}{did_you_mean(name, patches)}')
    return patches[name]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest one, and all of them."""
    import difflib  # rarely needed, and `import lmdeploy` passes here
    near = difflib.get_close_matches(name, known, n=1)
    hint = f'; did you mean {near[0]!r}? Known: ' if near else '; known: '
    return hint + (', '.join(sorted(known)) or 'none')


def _only_declaration(module: str) -> Declaration:
    values = vars(importlib.import_module(module)).values()
    declared = [value for value in values if isinstance(value, (Patch, Seam))]
    if len(declared) != 1:
        raise PatchError(f'{module} declares {len(declared)} patches or seams; '
                         f'each file declares exactly one')
    if declared[0].name != module.rpartition('.')[2]:
        raise PatchError(f'{module} declares a function of {declared[0].name}.py; '
                         f'declare one that is defined in the file')
    return declared[0]


def _require_one_patch_a_symbol(patches: List[Patch]) -> None:
    """One symbol and what it contains has one patch: of two, the later would hide the earlier."""
    for index, one in enumerate(patches):
        for other in patches[index + 1:]:
            outer, inner = sorted([one.target, other.target], key=len)
            if inner == outer or inner.startswith(outer + '.'):
                raise PatchError(f'patches {one.name} and {other.name} both change {inner}; '
                                 f'merge them into one file')
