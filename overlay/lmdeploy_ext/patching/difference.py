"""What is different about an upstream symbol that has drifted.

Upstream's source is not ours to ship, so the other side of the comparison is an unpacked wheel
that the user names, or the wheel of the installed release, which pip downloads.
"""
import base64
import difflib
import hashlib
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Iterator, List, Optional

from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.drift import try_fingerprint
from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.releases import format_releases, release_of
from lmdeploy_ext.patching.source import module_file, split_target, symbol_source


def describe(patch: Patch, root: Path, pristine: Optional[Path]) -> Iterator[str]:
    """Lines on every symbol that a patch depends on: fingerprints, and a diff where it drifted.

    Args:
        patch: the patch.
        root: the folder that holds the installed `lmdeploy/`.
        pristine: a folder that holds `lmdeploy/` as released; None to have pip download it.

    Raises:
        PatchError: the source to compare with cannot be had.
    """
    release = release_of(root)
    for target, sources in {patch.target: patch.upstream, **patch.guards}.items():
        found, expected = try_fingerprint(target, root), sources.get(release)
        yield f'{target}, LMDeploy {release}'
        yield f'  found     {found}{_known_as(found, sources)}'
        for key in dict.fromkeys(sources.values()):
            releases = format_releases(r for r in sources if sources[r] == key)
            yield f'  expected  {key}  in {releases}'
        if expected is None:
            yield f'  LMDeploy {release} is not listed: the patch is not needed there'
        elif found != expected:
            yield f'  {record_check(target, root)}'
            yield from _diff(target, root, release, pristine)


def record_check(target: str, root: Path) -> str:
    """Whether the file of a symbol is as pip installed it, by the sha256 in the wheel's RECORD."""
    path = module_file(split_target(target)[0], root)
    name = path.relative_to(root).as_posix()
    for distribution in importlib.metadata.distributions(name='lmdeploy', path=[str(root)]):
        for file in distribution.files or []:
            if file.as_posix() == name and file.hash is not None:
                digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
                same = base64.urlsafe_b64encode(digest).decode().rstrip('=') == file.hash.value
                return f'{path} is as it was installed' if same else (
                    f'{path} was changed after it was installed; '
                    f'`pip install --force-reinstall --no-deps lmdeploy=={release_of(root)}` '
                    f'brings it back')
    return f'{path} has no hash on record, so it cannot be told whether it was changed'


def _known_as(found: str, sources: dict) -> str:
    releases = [release for release, key in sources.items() if key == found]
    return f'  the source of {format_releases(releases)}' if releases else ''


def _diff(target: str, root: Path, release: str, pristine: Optional[Path]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        base = pristine or _download(split_target(target)[0], release, root, Path(scratch))
        before = _lines(target, base)
        origin = f'in {pristine}' if pristine else 'as released'
        label = f'LMDeploy {release_of(base)} {origin}'
    after = _lines(target, root)
    lines = list(difflib.unified_diff(before, after, label, f'installed in {root}', lineterm=''))
    yield from lines or ['  no difference from that source: the patch lists another fingerprint']


def _lines(target: str, root: Path) -> List[str]:
    """The lines of a symbol; none where it does not exist."""
    try:
        return symbol_source(target, root).split('\n')
    except PatchError:
        return []


def _download(module: str, release: str, root: Path, scratch: Path) -> Path:
    """Fetch the wheel of a release with pip and unpack what is needed of it; returns the root."""
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', scratch]
    command += ['--only-binary=:all:', '--disable-pip-version-check', f'lmdeploy=={release}']
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(scratch.glob('*.whl'))
    if done.returncode != 0 or not wheels:
        reason = (done.stderr.strip().splitlines() or ['no wheel'])[-1]
        raise PatchError(f'pip cannot download lmdeploy=={release} to compare with ({reason}); '
                         f'unpack its wheel yourself and give the folder with --root')
    names = {'lmdeploy/version.py', module_file(module, root).relative_to(root).as_posix()}
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(scratch, members=[name for name in wheel.namelist() if name in names])
    return scratch
