"""Fingerprints: which source of an upstream symbol a patch was written against."""
import hashlib
from pathlib import Path
from typing import Dict, Iterable, List

from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.releases import format_releases, release_of, require_supported
from lmdeploy_ext.patching.source import symbol_source

DIGITS = 16


def fingerprint(target: str, root: Path) -> str:
    """The first 16 hex digits of the sha256 of a symbol's dedented source, decorators included.

    The text and not the syntax tree, because `ast.dump` differs between Python versions.

    Args:
        target: `module:qualname`.
        root: the folder that holds `lmdeploy/`.

    Raises:
        PatchError: the module or the symbol does not exist.
    """
    return hashlib.sha256(symbol_source(target, root).encode()).hexdigest()[:DIGITS]


def fingerprints(target: str, roots: Iterable[Path]) -> Dict[str, str]:
    """Fingerprint -> range of releases, as a declaration's `upstream` has it.

    Releases without the symbol are left out.

    Args:
        target: `module:qualname`.
        roots: for each release, the folder that holds `lmdeploy/`.

    Raises:
        PatchError: no release has the symbol, or a folder holds no supported LMDeploy.
    """
    found: Dict[str, List[str]] = {}
    missing = None
    for root in roots:
        release = release_of(root)
        require_supported(release)
        try:
            found.setdefault(fingerprint(target, root), []).append(release)
        except PatchError as error:
            missing = error
    if not found and missing is not None:
        raise missing
    return {key: format_releases(releases) for key, releases in found.items()}
