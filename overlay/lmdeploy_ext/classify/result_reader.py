"""Reading a result file, as others do while it is written: whole lines only."""
import json
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, Optional, Tuple

from .errors import OutputError
from .row import Row, encode_line

HEADER_KEY = 'lmdeploy_ext'


def read_header(path: Path) -> Dict[str, Any]:
    """The header of a result file.

    Raises:
        OutputError: it cannot be read, or is no result file.
    """
    with open_result(path) as file:
        header, _ = scan_header(path, file)
    if header is None:
        raise OutputError(f'{path} is empty; expected a result file of classify')
    return header


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a result file, one at a time; a half-written last line is left out.

    Raises:
        OutputError: it cannot be read, is no result file, or a line is damaged.
    """
    with open_result(path) as file:
        header, end = scan_header(path, file)
        if header is None:
            return
        for row, _ in scan_rows(path, file, end):
            yield row


def open_result(path: Path) -> BinaryIO:
    try:
        return open(path, 'rb')
    except OSError as error:
        raise OutputError(f'cannot read {path}: {error.strerror}; expected a result file of '
                          f'classify') from error


def scan_header(path: Path, file: BinaryIO) -> Tuple[Optional[Dict[str, Any]], int]:
    """The header and the offset behind it; None and 0 where not even the header is whole.

    Raises:
        OutputError: it is no result file, nor the beginning of one.
    """
    line = file.readline()
    if not line.endswith(b'\n'):
        start = encode_line({HEADER_KEY: {}})[:-len(b'}}\n')]
        if line.startswith(start) or start.startswith(line):
            return None, 0
    try:
        header = json.loads(line)[HEADER_KEY]
        if isinstance(header, dict):
            return header, len(line)
    except (ValueError, KeyError, TypeError):
        pass
    raise OutputError(f'{path} is no result file of classify; choose another file')


def scan_rows(path: Path, file: BinaryIO, start: int) -> Iterator[Tuple[Row, int]]:
    """Each whole row from offset `start` on, and the offset behind it.

    Raises:
        OutputError: a line is damaged.
    """
    file.seek(start)
    for number, line in enumerate(file, start=2):
        if not line.endswith(b'\n'):
            return
        start += len(line)
        try:
            row = Row.from_record(json.loads(line))
        except (ValueError, TypeError) as error:
            raise OutputError(f'{path}, line {number}: not a row ({error}); remove that line, or '
                              f'choose another file') from error
        yield row, start
