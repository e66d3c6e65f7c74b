"""Images that are named by where they lie: a folder, a glob pattern, a list of files."""
import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Tuple

from .errors import SourceError
from .item import Item

IMAGE_SUFFIXES = ('.bmp', '.gif', '.jfif', '.jpe', '.jpeg', '.jpg', '.png', '.tif', '.tiff',
                  '.webp')


def is_image_name(name: str) -> bool:
    """Whether a file of this name is taken for an image: by its suffix, hidden files left out."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not os.path.basename(name).startswith('.')


@dataclass(frozen=True)
class FolderSource:
    """Every image file below a folder; an id is the path relative to it.

    The order is fixed: a folder's files by name, then its subfolders by name. Links to folders are
    not followed, since they may lead in circles.
    """
    folder: Path

    @property
    def name(self) -> str:
        return str(self.folder)

    def __iter__(self) -> Iterator[Item]:
        for root, folders, files in os.walk(self.folder, onerror=self._unreadable):
            folders.sort()
            for name in sorted(filter(is_image_name, files)):
                path = Path(root, name)
                yield Item(id=path.relative_to(self.folder).as_posix(), image=str(path))

    def _unreadable(self, error: OSError) -> None:
        raise SourceError(f'cannot list {error.filename}: {error.strerror}; '
                          f'make it readable or leave it out of the source')


@dataclass(frozen=True)
class FilesSource:
    """Files given by name; an id is the path as given."""
    paths: Tuple[str, ...]

    @property
    def name(self) -> str:
        return self.paths[0] if len(self.paths) == 1 else f'{len(self.paths)} files'

    def __iter__(self) -> Iterator[Item]:
        for path in self.paths:
            yield Item(id=Path(path).as_posix(), image=path)


@dataclass(frozen=True)
class GlobSource:
    """Image files that match a pattern (`**` for any depth), by name; an id is the path found."""
    pattern: str

    @property
    def name(self) -> str:
        return self.pattern

    def __iter__(self) -> Iterator[Item]:
        for path in sorted(glob.iglob(self.pattern, recursive=True)):
            if is_image_name(path) and os.path.isfile(path):
                yield Item(id=Path(path).as_posix(), image=path)
