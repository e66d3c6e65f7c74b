"""What `LMDEPLOY_EXT_PATCHES` selects."""
from typing import FrozenSet, Iterable, Mapping, Set

from lmdeploy_ext.config import PREFIX
from lmdeploy_ext.patching.catalogue import Declaration, did_you_mean
from lmdeploy_ext.patching.declaration import GROUPS, Patch, Seam
from lmdeploy_ext.patching.errors import PatchError

VARIABLE = PREFIX + 'PATCHES'


def select(text: str, entries: Iterable[Declaration]) -> FrozenSet[str]:
    """The names of the selected patches, and of those that they need and that are not left out.
    Seams always run and are not selected.

    Args:
        text: `all`, `none`, groups and names, comma separated; `-name` leaves a group or a patch
            out. Only `-name` means all but that one. The order does not matter.
        entries: the catalogue.

    Raises:
        PatchError: it is empty, or a name is unknown.
    """
    patches = [entry for entry in entries if isinstance(entry, Patch)]
    members = {group: {p.name for p in patches if p.group == group} for group in GROUPS}
    members.update({entry.name: {entry.name} for entry in patches})
    words = [word.strip() for word in text.split(',') if word.strip()]
    if not words:
        raise PatchError(f'{VARIABLE} is empty; unset it, or set it to all or none')
    everything = {patch.name for patch in patches}
    plus = {'all': everything, 'none': set(), **members}
    chosen: Set[str] = set()
    left_out: Set[str] = set()
    for word in words:
        if word.startswith('-'):
            left_out |= _lookup(word[1:].strip(), members, entries)
        else:
            chosen |= _lookup(word, plus, entries)
    if all(word.startswith('-') for word in words):
        chosen = everything
    chosen -= left_out
    needed = {name for patch in patches if patch.name in chosen for name in patch.needs}
    return frozenset(chosen | (needed - left_out))


def without(text: str, name: str) -> str:
    """The setting that selects the same as `text` does, but for one patch."""
    return f'-{name}' if text.strip() == 'all' else f'{text},-{name}'


def _lookup(word: str, members: Mapping[str, Set[str]],
            entries: Iterable[Declaration]) -> Set[str]:
    if word in members:
        return members[word]
    if word in ('all', 'none'):
        raise PatchError(f'{VARIABLE} leaves out {word!r}; leave out groups or patches, '
                         f'or set it to none for no patch at all')
    if any(isinstance(entry, Seam) and entry.name == word for entry in entries):
        raise PatchError(f'{VARIABLE} names {word!r}, which is a seam; '
                         f'seams change no upstream code and always run')
    raise PatchError(f'{VARIABLE} names {word!r}, which does not exist'
                     f'{did_you_mean(word, members)}')
