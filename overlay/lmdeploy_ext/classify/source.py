"""From what the user names to images, and the checks that come before any model is loaded."""
import difflib
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Optional, Protocol, Sequence

from .errors import SourceError
from .files import IMAGE_SUFFIXES, FilesSource, FolderSource, GlobSource, is_image_name
from .item import IdSet, Item
from .manifest import ManifestSource, read_records
from .openai_batch import BatchSource, is_batch_record
from .prompt_layout import check_no_place

MANIFEST_SUFFIXES = ('.csv', '.jsonl', '.ndjson')


class Source(Protocol):
    """Images in a fixed order. Iterating anew reads anew; nothing is kept in memory."""

    @property
    def name(self) -> str:
        ...

    def __iter__(self) -> Iterator[Item]:
        ...


@dataclass(frozen=True)
class Inventory:
    """What a source holds: images in total, and how many of their files do not exist."""
    total: int
    missing: int


def open_source(inputs: Sequence[str],
                split: Optional[str] = None,
                require_label: bool = False) -> Source:
    """The source that `inputs` names: a folder, a glob pattern, a manifest (`.csv`, `.jsonl`), an
    OpenAI batch file (JSONL with `custom_id`), or image files.

    Args:
        inputs: one of the above, or several image files (a pattern that the shell has expanded).
        split, require_label: see `ManifestSource`.

    Raises:
        SourceError: there is no such thing, or it has no splits or labels where those are wanted.
    """
    source = _files(inputs) if len(inputs) != 1 else _one(inputs[0], split, require_label)
    if not isinstance(source, ManifestSource) and (split is not None or require_label):
        wanted = 'split' if split is not None else 'label'
        raise SourceError(f'{source.name} has no {wanted}s; a {wanted} is read from a manifest '
                          f'({", ".join(MANIFEST_SUFFIXES)}) with a {wanted!r} column')
    return source


def _one(name: str, split: Optional[str], require_label: bool) -> Source:
    path = Path(name)
    if path.is_dir():
        return FolderSource(path)
    if path.is_file():
        if path.suffix.lower() not in MANIFEST_SUFFIXES:
            return _files([name])
        _, first = next(read_records(path), (0, {}))
        if is_batch_record(first):
            return BatchSource(path)
        return ManifestSource(path, split, require_label)
    if glob.has_magic(name):
        return GlobSource(name)
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f'did you mean {path.parent / close[0]}?' if close else 'check the path'
    raise SourceError(f'{name} does not exist; expected a folder, a glob pattern, a manifest or '
                      f'image files: {hint}')


def _files(names: Sequence[str]) -> FilesSource:
    if not names:
        raise SourceError('no input; expected a folder, a glob pattern, a manifest or image files')
    for name in names:
        if os.path.isfile(name) and not is_image_name(name):
            raise SourceError(
                f'{name} is neither an image file ({" ".join(IMAGE_SUFFIXES)}) nor a '
                f'manifest ({" ".join(MANIFEST_SUFFIXES)})')
        if os.path.isdir(name):
            raise SourceError(f'{name} is a folder among several inputs; give one folder alone, '
                              f'or files')
    return FilesSource(tuple(names))


def check_source(source: Source,
                 allow_missing: bool = False,
                 need_prompt: bool = False,
                 prompt_first: bool = False) -> Inventory:
    """Read the whole source once, without opening an image.

    Args:
        allow_missing: whether missing files become error rows; else they are an error here.
        need_prompt: whether the run has no prompt of its own, so that each item must have one.
        prompt_first: whether prompts are to stand before their images.

    Raises:
        SourceError: no images, duplicate ids, missing files, no prompt, or one that says itself
            where its image stands.
    """
    ids, duplicates, missing = IdSet(), _Sample(), _Sample()
    total = 0
    for item in source:
        total += 1
        if not ids.add(item.id):
            duplicates.add(item.id)
        if item.is_file and not os.path.isfile(item.image):
            missing.add(item.image)
        if need_prompt and not item.prompt:
            raise SourceError(f'no prompt for {item.id!r}: give --prompt, or an OpenAI batch file '
                              f'with a text in each request')
        if need_prompt and prompt_first:
            check_no_place(item.prompt, f'the prompt of {item.id!r}')
    if not total:
        raise SourceError(f'no images in {source.name}; expected a manifest with rows, or files '
                          f'that end with {" ".join(IMAGE_SUFFIXES)}')
    if duplicates.count:
        raise SourceError(
            f'{duplicates.count} duplicate ids in {source.name}: {duplicates}; every image needs '
            f'an id of its own')
    if missing.count and not allow_missing:
        raise SourceError(
            f'{missing.count} missing files in {source.name}: {missing}; correct the paths, or '
            f'pass --allow-missing to get an error row for each')
    return Inventory(total, missing.count)


class _Sample:
    """The first few of many names, and their count."""
    SHOWN = 3

    def __init__(self) -> None:
        self.count = 0
        self._first: List[str] = []

    def add(self, name: str) -> None:
        self.count += 1
        if len(self._first) < self.SHOWN:
            self._first.append(name if name.isprintable() else repr(name))

    def __str__(self) -> str:
        rest = self.count - len(self._first)
        return ', '.join(self._first) + (f' and {rest} more' if rest else '')
