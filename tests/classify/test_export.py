"""CSV and Parquet hold what the result file holds."""
import csv
import json

import pandas
import pyarrow.parquet
import pytest

from lmdeploy_ext.classify import export
from lmdeploy_ext.classify.errors import OutputError
from lmdeploy_ext.classify.result_file import ResultFile

from .fakes import IDENTITY, jpeg, row

COLUMNS = [
    'id', 'path', 'label', 'p_是', 'p_否', 'text', 'input_tokens', 'output_tokens', 'seconds',
    'error'
]


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / 'rows.jsonl'
    with ResultFile(path, IDENTITY) as result:
        result.begin(IDENTITY)
        for number in range(5):
            result.append(row(f'{number}', error='cut, "off"' if number == 3 else None))
    return path


def test_csv(rows_file, tmp_path):
    export.export_csv(rows_file, tmp_path / 'rows.csv')
    with open(tmp_path / 'rows.csv', encoding='utf-8', newline='') as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS
    assert [fields['id'] for fields in rows] == ['0', '1', '2', '3', '4']
    assert (rows[0]['label'], rows[0]['p_是'], rows[0]['error']) == ('是', '0.75', '')
    assert (rows[3]['label'], rows[3]['p_是'], rows[3]['error']) == ('', '', 'cut, "off"')


def test_parquet_in_several_chunks(rows_file, tmp_path, monkeypatch):
    monkeypatch.setattr(export, '_CHUNK', 2)
    export.export_parquet(rows_file, tmp_path / 'rows.parquet')
    frame = pandas.read_parquet(tmp_path / 'rows.parquet')
    assert list(frame.columns) == COLUMNS and len(frame) == 5
    assert frame['p_否'][0] == 0.25 and frame['label'][3] is None
    metadata = pyarrow.parquet.read_schema(tmp_path / 'rows.parquet').metadata
    assert json.loads(metadata[b'lmdeploy_ext']) == IDENTITY


def test_an_export_that_fails_leaves_the_old_file(rows_file, tmp_path):
    (tmp_path / 'rows.csv').write_text('old')
    rows_file.write_bytes(rows_file.read_bytes() + b'{}\n')
    with pytest.raises(OutputError, match='line 7: not a row'):
        export.export_csv(rows_file, tmp_path / 'rows.csv')
    assert (tmp_path / 'rows.csv').read_text() == 'old'
    assert sorted(path.name for path in tmp_path.iterdir()) == ['rows.csv', 'rows.jsonl']


def test_whether_a_path_can_be_written_is_known_beforehand(tmp_path):
    export.check_writable(tmp_path / 'new' / 'rows.csv')
    assert not (tmp_path / 'new' / 'rows.csv').exists()
    with pytest.raises(OutputError, match='cannot write'):
        export.check_writable(tmp_path)


@pytest.mark.parametrize('write', export.EXPORTS.values())
def test_an_earlier_export_may_be_replaced(rows_file, tmp_path, write):
    path = tmp_path / 'rows.out'
    write(rows_file, path)
    before = path.read_bytes()
    export.check_writable(path)
    assert path.read_bytes() == before


def test_a_file_of_another_kind_is_not_replaced(tmp_path):
    """A photo of the source, or the manifest of another one, named by mistake."""
    path = tmp_path / 'photo.jpg'
    path.write_bytes(jpeg(1))
    with pytest.raises(OutputError, match='photo.jpg is there and holds no exported rows'):
        export.check_writable(path)
    assert path.read_bytes() == jpeg(1)
