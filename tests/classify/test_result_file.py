"""The result file: what is written survives, what is half-written goes, nothing is mixed."""
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmdeploy_ext.classify import result_reader
from lmdeploy_ext.classify.errors import OutputError
from lmdeploy_ext.classify.result_file import ResultFile, read_header, read_rows
from lmdeploy_ext.classify.result_reader import scan_header
from lmdeploy_ext.classify.row import Row

from .fakes import IDENTITY, row

TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)


def write(path, rows, identity=IDENTITY, **options):
    """One run that writes the rows which the file does not have."""
    with ResultFile(path, identity, **options) as result:
        result.begin(identity)
        for each in rows:
            if each.id not in result.done:
                result.append(each)
        return result.tally


def test_a_header_then_one_json_object_an_image(tmp_path):
    path = tmp_path / 'new' / 'rows.jsonl'
    rows = [row('a'), row('房间.jpg', error='cut'), row('\udcff.jpg', text='"\n\u2028')]
    write(path, rows)
    lines = path.read_bytes().decode().split('\n')
    assert lines[-1] == '' and len(lines) == 5
    assert json.loads(lines[0]) == {'lmdeploy_ext': IDENTITY} and read_header(path) == IDENTITY
    assert json.loads(lines[1]) == {
        'id': 'a',
        'path': 'a',
        'label': '是',
        'probabilities': {
            '是': 0.75,
            '否': 0.25
        },
        'text': '是',
        'input_tokens': 70,
        'output_tokens': 1,
        'seconds': 0.25,
        'error': None
    }
    assert json.loads(lines[2])['label'] is None and '房间' in lines[2]
    assert list(read_rows(path)) == rows


def test_a_row_can_be_read_as_soon_as_it_is_appended(tmp_path):
    with ResultFile(tmp_path / 'rows.jsonl', IDENTITY) as result:
        result.begin(IDENTITY)
        for number in range(3):
            result.append(row(str(number)))
            assert len(list(read_rows(tmp_path / 'rows.jsonl'))) == number + 1


@given(st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=6, unique_by=lambda row: row[0]),
       st.data())
@settings(max_examples=150,
          deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_anywhere_and_resumed_it_is_the_same_file(tmp_path_factory, texts, data):
    rows = [row(id_, error=text if failed else None, text=text) for id_, text, failed in texts]
    path = tmp_path_factory.mktemp('cut') / 'rows.jsonl'
    write(path, rows)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    tally = write(path, rows)
    assert path.read_bytes() == whole
    assert (tally.rows, tally.errors) == (len(rows), sum(each.error is not None for each in rows))


def test_what_is_there_is_not_touched_before_the_run_begins(tmp_path):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a'), row('b', error='cut')])
    path.write_bytes(path.read_bytes() + b'{"id": "half')
    before = path.read_bytes()
    for options in ({}, {'overwrite': True}, {'retry_errors': True}):
        ResultFile(path, IDENTITY, **options).close()
        assert path.read_bytes() == before
    assert [each.id for each in read_rows(path)] == ['a', 'b']


def test_a_header_that_is_completed_while_it_is_read_has_no_rows_yet(tmp_path, monkeypatch):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a')])
    whole = path.read_bytes()
    path.write_bytes(whole[:10])

    def scan_then_complete(*args):
        found = scan_header(*args)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr(result_reader, 'scan_header', scan_then_complete)
    assert list(read_rows(path)) == []
    monkeypatch.undo()
    assert [each.id for each in read_rows(path)] == ['a']


def test_a_file_of_a_run_that_never_began_does_not_stay(tmp_path):
    path = tmp_path / 'rows.jsonl'
    ResultFile(path, IDENTITY).close()
    assert not path.exists()


def test_rows_with_errors_are_tried_again_on_request_only(tmp_path):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a'), row('b', error='cut'), row('c')])
    tally = write(path, [row('a'), row('b'), row('c')])
    assert tally.errors == 1
    tally = write(path, [row('a'), row('b'), row('c')], retry_errors=True)
    assert (tally.rows, tally.errors) == (3, 0)
    assert [(each.id, each.error) for each in read_rows(path)] == [('a', None), ('c', None),
                                                                   ('b', None)]
    assert os.listdir(tmp_path) == ['rows.jsonl']


def test_a_retried_file_is_still_locked(tmp_path):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('b', error='cut')])
    with ResultFile(path, IDENTITY, retry_errors=True) as result:
        result.begin(IDENTITY)
        with pytest.raises(OutputError, match='another run is writing'):
            ResultFile(path, IDENTITY)


def test_overwriting_starts_anew(tmp_path):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a'), row('b')])
    other = {**IDENTITY, 'prompt': 'q'}
    assert write(path, [row('c')], other, overwrite=True).rows == 1
    assert read_header(path) == other and [each.id for each in read_rows(path)] == ['c']


@pytest.mark.parametrize('changed, message', [
    ({
        'prompt': 'q'
    }, 'prompt: "p" there, "q" here'),
    ({
        'labels': ['是', '不']
    }, r'labels: \["是", "否"\] there, \["是", "不"\] here'),
    ({
        'model': {
            'path': 'm',
            'fingerprint': 'g'
        }
    }, 'model.fingerprint: "f" there, "g" here'),
    ({
        'settings': {
            'max_new_tokens': 2
        }
    }, 'settings.max_new_tokens: 1 there, 2 here'),
    ({
        'settings': {}
    }, 'settings.max_new_tokens: 1 there, null here'),
])
def test_rows_of_another_run_are_not_mixed_in(tmp_path, changed, message):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a')])
    before = path.read_bytes()
    with pytest.raises(OutputError, match=message) as caught:
        ResultFile(path, {**IDENTITY, **changed})
    assert 'choose another --output, or pass --overwrite' in str(caught.value)
    assert path.read_bytes() == before


def test_a_model_that_was_moved_is_the_same_model(tmp_path):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a')])
    assert write(path, [], {**IDENTITY, 'model': {'path': 'n', 'fingerprint': 'f'}}).rows == 1


def test_two_runs_do_not_write_one_file(tmp_path):
    path = tmp_path / 'rows.jsonl'
    with ResultFile(path, IDENTITY) as result:
        result.begin(IDENTITY)
        with pytest.raises(OutputError, match='another run is writing .*rows.jsonl; wait for it'):
            ResultFile(path, IDENTITY)
    assert write(path, [row('a')]).rows == 1


def test_the_lock_of_a_killed_run_is_gone(tmp_path):
    path = tmp_path / 'rows.jsonl'
    code = ('import sys, time; from pathlib import Path\n'
            'from lmdeploy_ext.classify.result_file import ResultFile\n'
            'ResultFile(Path(sys.argv[1]), {}); print("open", flush=True); time.sleep(60)')
    process = subprocess.Popen([sys.executable, '-c', code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b'open\n'
    with pytest.raises(OutputError, match='another run'):
        ResultFile(path, IDENTITY)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ResultFile(path, IDENTITY).close()


@pytest.mark.parametrize('content', [
    b'hello\n',
    b'{"id": "a", "image": "b"}\n',
    b'[1]\n',
    b'{"lmdeploy_ext": 1}\n',
    b'id,label\n',
    b'half a line',
    b'\xff\xd8\xff\xe0',
    b'null\n',
])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / 'rows.jsonl'
    path.write_bytes(content)
    for overwrite in (False, True):
        with pytest.raises(OutputError, match='is no result file of classify'):
            ResultFile(path, IDENTITY, overwrite=overwrite)
    assert path.read_bytes() == content


@pytest.mark.parametrize('line', [b'{}', b'{"id": 1', b'\xff', b'7'])
def test_a_damaged_line_is_named_not_skipped(tmp_path, line):
    path = tmp_path / 'rows.jsonl'
    write(path, [row('a'), row('b')])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + line + b'\n' + lines[2])
    with pytest.raises(OutputError, match='rows.jsonl, line 3: not a row'):
        ResultFile(path, IDENTITY)


def test_an_output_that_cannot_be_written_is_said_at_once(tmp_path):
    message = f"cannot write {tmp_path}: Is a directory; choose another"
    with pytest.raises(OutputError, match=message):
        ResultFile(tmp_path, IDENTITY)
    (tmp_path / 'file').write_text('')
    with pytest.raises(OutputError, match='cannot write .*file/rows.jsonl'):
        ResultFile(tmp_path / 'file' / 'rows.jsonl', IDENTITY)


@pytest.mark.parametrize('device', ['/dev/null', '/dev/zero'])
def test_a_device_is_no_result_file(device):
    with pytest.raises(OutputError, match=f'{device} is a device or a pipe; choose'):
        ResultFile(Path(device), IDENTITY)


def test_a_full_disk_ends_the_run_and_keeps_the_rows(tmp_path):
    path = tmp_path / 'rows.jsonl'
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with ResultFile(path, IDENTITY) as result:
            result.begin(IDENTITY)
            result.append(row('a'))
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
            with pytest.raises(OutputError, match='the rows before are safe'):
                result.append(row('b'))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [each.id for each in read_rows(path)] == ['a']
    assert write(path, [row('a'), row('b')]).rows == 2


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(OutputError, match='cannot read'):
        read_header(tmp_path / 'none')
    (tmp_path / 'empty').write_bytes(b'')
    with pytest.raises(OutputError, match='is empty'):
        read_header(tmp_path / 'empty')
    assert list(read_rows(tmp_path / 'empty')) == []


def test_a_row_of_other_fields_is_no_row():
    with pytest.raises(ValueError, match='fields id; expected id, path, label'):
        Row.from_record({'id': 'a'})
