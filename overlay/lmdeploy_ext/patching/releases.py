"""The LMDeploy releases that we support, and ranges of them."""
import re
from pathlib import Path
from typing import Iterable, List, Tuple

from lmdeploy_ext.patching.errors import PatchError

SUPPORTED = ('0.6.0', '0.6.1', '0.6.2', '0.6.2.post1', '0.6.3', '0.6.4')


def parse_releases(text: str) -> Tuple[str, ...]:
    """The releases that a range names, oldest first.

    Args:
        text: comma separated releases and inclusive ranges, such as `0.6.0 to 0.6.1, 0.6.3`.

    Raises:
        PatchError: a release is not supported, or a range runs backwards.
    """
    chosen = set()
    for part in text.split(','):
        ends = [_index(end.strip(), text) for end in part.split(' to ')]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise PatchError(f'{part.strip()!r} in {text!r} is no range of releases; '
                             f'write it as "0.6.0 to 0.6.4"')
        chosen.update(SUPPORTED[ends[0]:ends[-1] + 1])
    return tuple(release for release in SUPPORTED if release in chosen)


def format_releases(releases: Iterable[str]) -> str:
    """The shortest text that `parse_releases` reads as these releases."""
    runs: List[List[int]] = []
    for index in sorted({SUPPORTED.index(release) for release in releases}):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ', '.join(' to '.join(dict.fromkeys([SUPPORTED[first], SUPPORTED[last]]))
                     for first, last in runs)


def release_of(root: Path) -> str:
    """The release of the LMDeploy in `root` (the folder that holds `lmdeploy/`), not imported.

    Raises:
        PatchError: there is no LMDeploy, or its version file names no version.
    """
    path = root / 'lmdeploy' / 'version.py'
    try:
        text = path.read_text(encoding='utf-8')
    except OSError:
        raise PatchError(f'{path} cannot be read; give the folder that holds lmdeploy/') from None
    found = re.search(r'^__version__\s*=\s*[\'"]([^\'"]+)[\'"]', text, re.MULTILINE)
    if found is None:
        raise PatchError(f'{path} names no __version__; install LMDeploy again')
    return found.group(1)


def require_supported(release: str) -> None:
    """Refuse a release that the patches were not written for.

    Raises:
        PatchError: the release is not supported.
    """
    if release not in SUPPORTED:
        raise PatchError(f'LMDeploy {release} is not supported: lmdeploy-ext patches '
                         f'{format_releases(SUPPORTED)}; install one of those, or run '
                         f'`make unpatch` to use LMDeploy {release} as it is')


def _index(release: str, text: str) -> int:
    if release not in SUPPORTED:
        raise PatchError(f'{release!r} in {text!r} is not a supported release; '
                         f'those are {", ".join(SUPPORTED)}')
    return SUPPORTED.index(release)
