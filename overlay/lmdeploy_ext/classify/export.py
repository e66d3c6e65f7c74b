"""A result file as CSV or Parquet, for other tools."""
import csv
import os
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

from .errors import OutputError
from .result_reader import read_header, read_rows
from .row import Row

_CHUNK = 10_000  # rows in memory at once
_STARTS = (b'id,path,label,', b'PAR1')  # of an exported file


def export_csv(result: Path, path: Path) -> None:
    """Write the rows of a result file as CSV, one column `p_LABEL` for each label's probability.

    Raises:
        OutputError: `result` is no result file, or `path` cannot be written.
    """
    labels = read_header(result)['labels']
    with _replacing(path) as temporary, open(temporary,
                                             'w',
                                             encoding='utf-8',
                                             errors='backslashreplace',
                                             newline='') as file:
        writer = csv.DictWriter(file, fieldnames=_columns(labels))
        writer.writeheader()
        writer.writerows(_record(row, labels) for row in read_rows(result))


def export_parquet(result: Path, path: Path) -> None:
    """Write the rows of a result file as Parquet, with the columns of `export_csv`; the header
    lies in the file's metadata under `lmdeploy_ext`.

    Raises:
        OutputError: `result` is no result file, or `path` cannot be written.
    """
    import json

    import pyarrow
    import pyarrow.parquet
    header = read_header(result)
    labels = header['labels']
    schema = _schema(pyarrow, labels).with_metadata({'lmdeploy_ext': json.dumps(header)})
    rows = read_rows(result)
    with _replacing(path) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        while chunk := [_record(row, labels) for row in islice(rows, _CHUNK)]:
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))


EXPORTS: Dict[str, Callable[[Path, Path], None]] = {'csv': export_csv, 'parquet': export_parquet}


def check_writable(path: Path) -> None:
    """Check that a file can be written there; what is there stays as it is.

    Raises:
        OutputError: it cannot, or what is there is no earlier export.
    """
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, 'ab+') as file:
            file.seek(0)
            start = file.read(max(map(len, _STARTS)))
        if not existed:
            path.unlink()
    except OSError as error:
        raise OutputError(f'cannot write {path}: {error.strerror}; choose another path') from error
    if start and not start.startswith(_STARTS):
        raise OutputError(f'{path} is there and holds no exported rows; choose another path, or '
                          f'delete it')


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write that takes the place of `path` when it is complete."""
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(
            f'cannot write {path}: {error.strerror}; the rows are safe in the result '
            f'file') from error
    finally:
        temporary.unlink(missing_ok=True)


def _columns(labels: List[str]) -> List[str]:
    return [
        'id', 'path', 'label', *(f'p_{label}' for label in labels), 'text', 'input_tokens',
        'output_tokens', 'seconds', 'error'
    ]


def _record(row: Row, labels: List[str]) -> Dict[str, Any]:
    probabilities = row.probabilities or {}
    return {
        'id': row.id,
        'path': row.path,
        'label': row.label,
        **{
            f'p_{label}': probabilities.get(label)
            for label in labels
        }, 'text': row.text,
        'input_tokens': row.input_tokens,
        'output_tokens': row.output_tokens,
        'seconds': row.seconds,
        'error': row.error
    }


def _schema(pyarrow: Any, labels: List[str]) -> Any:
    kinds = {
        'input_tokens': pyarrow.int32(),
        'output_tokens': pyarrow.int32(),
        'seconds': pyarrow.float64(),
        **{
            f'p_{label}': pyarrow.float64()
            for label in labels
        }
    }
    return pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in _columns(labels)])
