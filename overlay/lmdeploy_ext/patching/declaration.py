"""How a patch and a seam are declared. Standard library only: a file in `patches/` is cheap."""
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.fingerprint import DIGITS
from lmdeploy_ext.patching.releases import format_releases, parse_releases
from lmdeploy_ext.patching.source import split_target

GROUPS = ('cpu', 'correctness', 'speed')


@dataclass(frozen=True)
class Patch:
    """One upstream symbol and what replaces it.

    Attributes:
        name: the file's name.
        target: `module:qualname` of a function, method (also static, class, property) or class.
        group: one of `GROUPS`.
        upstream: release -> fingerprint of the target there.
        guards: further target -> release -> fingerprint, for source the replacement leans on.
        why: a fact, with a number or an issue.
        remove_when: a condition that someone can check.
        signature_change: why the replacement takes other parameters or is of another kind, if so.
        build: takes the original, returns the replacement.
        needs: names of patches without which this one does harm; they are selected with it.
    """
    name: str
    target: str
    group: str
    upstream: Mapping[str, str]
    guards: Mapping[str, Mapping[str, str]]
    why: str
    remove_when: str
    signature_change: Optional[str]
    build: Callable[[Any], Any]
    needs: Tuple[str, ...] = ()

    def __call__(self, original: Any) -> Any:
        """The replacement for `original`."""
        return self.build(original)

    @property
    def module(self) -> str:
        """The module that the target is defined in."""
        return split_target(self.target)[0]

    @property
    def releases(self) -> str:
        """The range of releases that need the patch."""
        return format_releases(self.upstream)


@dataclass(frozen=True)
class Seam:
    """A use of an extension point that upstream offers: changes no upstream code, always runs.

    Attributes:
        name: the file's name.
        after: the LMDeploy module that must have run.
        why: what it registers, and what for.
        register: takes that module.
    """
    name: str
    after: str
    why: str
    register: Callable[[ModuleType], None]

    def __call__(self, module: ModuleType) -> None:
        """Register with `module`."""
        self.register(module)

    @property
    def module(self) -> str:
        """The module that must have run."""
        return self.after


def patch(*,
          target: str,
          group: str,
          upstream: Mapping[str, str],
          why: str,
          remove_when: str,
          guards: Optional[Mapping[str, Mapping[str, str]]] = None,
          signature_change: Optional[str] = None,
          needs: Tuple[str, ...] = ()) -> Callable[[Callable[[Any], Any]], Patch]:
    """Declare the decorated function (takes the original, returns the replacement) as a patch.

    It receives the plain function of a static or class method, the getter of a property. It is
    called once, when the target's module has run, and imports what it needs itself. It keeps the
    original in its closure, never in a module's globals, where it would be taken for a copy that
    upstream made. The replacement has the original's parameters and kind (async stays async); one
    that passes `*args, **kwargs` on is fine, too. What a decorator has registered elsewhere by
    then (a FastAPI route) keeps the original: patch what it calls.

    Args:
        target: `module:qualname`, in the module that defines it.
        group: one of `GROUPS`.
        upstream: fingerprint -> range of releases, as the command `fingerprint TARGET` prints it.
        why: the fact behind the patch, with a number or an issue.
        remove_when: the condition under which it can go.
        guards: target -> fingerprint -> range of releases, for source the replacement leans on;
            each covers every release that `upstream` covers.
        signature_change: the reason for other parameters or another kind.
        needs: patches, of whatever group, that are to be selected where this one is.

    Raises:
        PatchError: the declaration is incomplete or contradicts itself.
    """

    def declare(build: Callable[[Any], Any]) -> Patch:
        name = _name_of(build)
        if group not in GROUPS:
            raise PatchError(f'patch {name}: group {group!r} does not exist; '
                             f'those are {", ".join(GROUPS)}')
        _require_text(name, why=why, remove_when=remove_when)
        if signature_change is not None:
            _require_text(name, signature_change=signature_change)
        sources = _by_release(name, target, upstream)
        guarded = {guard: _by_release(name, guard, keys) for guard, keys in (guards or {}).items()}
        for guard, keys in guarded.items():
            if not set(sources) <= set(keys):
                raise PatchError(f'patch {name}: guard {guard} covers {format_releases(keys)}, '
                                 f'the patch {format_releases(sources)}; add what is missing')
        return Patch(name, target, group, sources, guarded, why, remove_when, signature_change,
                     build, needs)

    return declare


def seam(*, after: str, why: str) -> Callable[[Callable[[ModuleType], None]], Seam]:
    """Declare the decorated function (takes the module) to run when `after` has run.

    Args:
        after: a module of LMDeploy.
        why: what is registered there, and what for.

    Raises:
        PatchError: the declaration is incomplete.
    """

    def declare(register: Callable[[ModuleType], None]) -> Seam:
        name = _name_of(register)
        parts = after.split('.')
        if parts[0] != 'lmdeploy' or not all(part.isidentifier() for part in parts):
            raise PatchError(f'seam {name}: {after!r} is no module of lmdeploy')
        _require_text(name, why=why)
        return Seam(name, after, why, register)

    return declare


def _name_of(function: Callable) -> str:
    return function.__module__.rpartition('.')[2]


def _require_text(name: str, **fields: str) -> None:
    for field, text in fields.items():
        if not text.strip():
            raise PatchError(f'{name}: {field} is empty; write one sentence')


def _by_release(name: str, target: str, sources: Mapping[str, str]) -> Dict[str, str]:
    """Release -> fingerprint, from fingerprint -> range of releases."""
    split_target(target)
    hint = f'`python -m lmdeploy_ext.patching fingerprint {target}` prints it'
    by_release: Dict[str, str] = {}
    for key, releases in sources.items():
        if not re.fullmatch(f'[0-9a-f]{{{DIGITS}}}', key):
            raise PatchError(f'patch {name}: {key!r} is not {DIGITS} hex digits; {hint}')
        for release in _parse(name, releases):
            if release in by_release:
                raise PatchError(f'patch {name}: {target} has two fingerprints for {release}; '
                                 f'a release has one source')
            by_release[release] = key
    if not by_release:
        raise PatchError(f'patch {name}: {target} has no fingerprint; {hint}')
    return by_release


def _parse(name: str, releases: str) -> Tuple[str, ...]:
    try:
        return parse_releases(releases)
    except PatchError as error:
        raise PatchError(f'patch {name}: {error}') from None
