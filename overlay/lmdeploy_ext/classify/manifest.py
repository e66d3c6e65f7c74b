"""Images listed in a CSV or JSONL manifest."""
import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Set, Tuple

from .errors import SourceError
from .item import Item

IMAGE_COLUMNS = ('image', 'path')


@dataclass(frozen=True)
class ManifestSource:
    """A manifest: one image a row, with the columns `image` (or `path`; relative to the manifest)
    and, optional, `id` (else the image as written), `label` and `split`.

    Attributes:
        file: a `.csv` file with a header, else one JSON object a line; UTF-8.
        split: only rows of this split.
        require_label: whether a row without a label is an error.
    """
    file: Path
    split: Optional[str] = None
    require_label: bool = False

    @property
    def name(self) -> str:
        return str(self.file)

    def __iter__(self) -> Iterator[Item]:
        splits: Set[str] = set()
        for line, record in read_records(self.file):
            if self.split is not None:
                split = self._field(line, record, 'split')
                splits.add(split)
                if split != self.split:
                    continue
            yield self._item(line, record)
        if self.split is not None and self.split not in splits:
            found = ', '.join(sorted(splits)) or 'nothing'
            raise SourceError(
                f'{self.file} has no row of the split {self.split!r}; found {found}: '
                f'choose one of them or leave out --split')

    def _item(self, line: int, record: Dict[str, Any]) -> Item:
        image = next((record[name] for name in IMAGE_COLUMNS if record.get(name)), None)
        if not isinstance(image, str):
            raise SourceError(f'{self.file}, line {line}: no image; expected a path in '
                              f'{" or ".join(IMAGE_COLUMNS)}, found {_names(record)}')
        id_, label = record.get('id'), record.get('label')
        if self.require_label:
            label = self._field(line, record, 'label')
        item = Item(id=image if id_ in (None, '') else str(id_),
                    image=image,
                    label=None if label in (None, '') else str(label))
        return replace(item, image=str(self.file.parent / image)) if item.is_file else item

    def _field(self, line: int, record: Dict[str, Any], name: str) -> str:
        if record.get(name) in (None, ''):
            raise SourceError(f'{self.file}, line {line}: no {name}; found {_names(record)}: '
                              f'add a {name!r} column')
        return str(record[name])


def read_records(file: Path) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """Line number and fields of each row of a CSV or JSONL file.

    Raises:
        SourceError: it cannot be read, or a line is not a row.
    """
    read = _csv_records if file.suffix.lower() == '.csv' else _json_records
    try:
        yield from read(file)
    except UnicodeDecodeError as error:
        raise SourceError(
            f'{file} is not UTF-8 ({error.reason} at byte {error.start} of a block): '
            f'save it as UTF-8') from error
    except OSError as error:
        raise SourceError(f'cannot read {file}: {error.strerror}') from error


def _csv_records(file: Path) -> Iterator[Tuple[int, Dict[str, Any]]]:
    with open(file, encoding='utf-8-sig', newline='') as stream:
        reader = csv.DictReader(stream)
        try:
            names = reader.fieldnames or []
            for name in names:
                if names.count(name) > 1:
                    raise SourceError(f'{file}: the column {name!r} stands twice; '
                                      f'give each column a name of its own')
            for record in reader:
                if None in record:
                    raise SourceError(
                        f'{file}, line {reader.line_num}: more fields than the header '
                        f'names; quote fields that hold commas')
                yield reader.line_num, record
        except csv.Error as error:
            raise SourceError(f'{file}, line {reader.line_num}: not CSV ({error})') from error


def _json_records(file: Path) -> Iterator[Tuple[int, Dict[str, Any]]]:
    with open(file, encoding='utf-8-sig') as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise SourceError(f'{file}, line {number}: not JSON ({error.msg} at column '
                                  f'{error.colno}); expected one JSON object a line') from error
            except RecursionError as error:
                raise SourceError(f'{file}, line {number}: nested too deeply; '
                                  f'expected one JSON object a line') from error
            if not isinstance(record, dict):
                raise SourceError(f'{file}, line {number}: {type(record).__name__}; '
                                  f'expected one JSON object a line')
            yield number, record


def _names(record: Dict[str, Any]) -> str:
    return 'the columns ' + (', '.join(map(str, record)) or '(none)')
