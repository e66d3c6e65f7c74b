"""Compare the source that a patch was written against with the source that is there."""
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.fingerprint import fingerprint
from lmdeploy_ext.patching.selection import VARIABLE, without


@dataclass(frozen=True)
class Drift:
    """A symbol that is not what a patch expects.

    Attributes:
        patch: the patch that cannot be applied.
        target: the symbol: the patch's target or one of its guards.
        release: the release of LMDeploy that was looked at.
        found: fingerprint of the symbol, or why it has none.
        expected: fingerprint that the patch lists for that release.
    """
    patch: Patch
    target: str
    release: str
    found: str
    expected: str


def find_drift(patch: Patch, root: Path, release: str) -> Optional[Drift]:
    """The first symbol that differs from what the patch lists for `release`, or None.

    A release that the patch does not list needs no patch, and so nothing is compared.
    """
    if release not in patch.upstream:
        return None
    for target, sources in {patch.target: patch.upstream, **patch.guards}.items():
        found = try_fingerprint(target, root)
        if found != sources[release]:
            return Drift(patch, target, release, found, sources[release])
    return None


def try_fingerprint(target: str, root: Path) -> str:
    """The fingerprint of a symbol, or the reason why it has none."""
    try:
        return fingerprint(target, root)
    except PatchError as error:
        return str(error)


def drift_message(drifts: List[Drift], selected: str) -> str:
    """One line about the first drift, and how to run without everything that has drifted.

    Args:
        drifts: at least one.
        selected: the value of `LMDEPLOY_EXT_PATCHES`.
    """
    first = drifts[0]
    for drift in drifts:
        selected = without(selected, drift.patch.name)
    more = [drift.patch.name for drift in drifts[1:]]
    also = f' (also drifted: {", ".join(more)})' if more else ''
    return (f'patch {first.patch.name}: {first.target} of LMDeploy {first.release} has drifted: '
            f'found {first.found}, expected {first.expected}{also}; '
            f'`python -m lmdeploy_ext.patching diff {first.patch.name}` shows the difference, '
            f'{VARIABLE}={selected} runs without')


def unlisted(patch: Patch, root: Path, release: str) -> Optional[str]:
    """One line if a release carries source that a patch is for, and the patch does not list it."""
    found = try_fingerprint(patch.target, root)
    if release in patch.upstream or found not in patch.upstream.values():
        return None
    return (f'patch {patch.name}: LMDeploy {release} carries {patch.target} with fingerprint '
            f'{found}, too, but is not listed and would run unpatched; add it to upstream')
