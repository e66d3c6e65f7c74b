"""What `make demo` does, with fakes in place of the renderer and of LMDeploy."""
import sys

import pytest

from lmdeploy_ext.classify import read_rows
from lmdeploy_ext.eval import demo_run
from lmdeploy_ext.eval.__main__ import main
from lmdeploy_ext.eval.run_folder import RunFolder

RENDERER = """
import json, pathlib, sys
folder, split, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if split == 'broken':
    sys.exit(3)
folder.mkdir(parents=True, exist_ok=True)
with open(folder / 'manifest.jsonl', 'w') as file:
    for number in range(count):
        (folder / f'{number}.jpg').write_bytes(b'jpeg')
        row = {'id': f'{split}-{number}', 'image': f'{number}.jpg', 'label': '是否'[number % 2],
               'split': split}
        file.write(json.dumps(row) + chr(10))
"""


@pytest.fixture
def demo(monkeypatch, tmp_path, fake_worker):
    """The demo in a folder of its own; returns the folder of its run."""
    (tmp_path / 'model').mkdir()
    (tmp_path / 'model' / 'config.json').write_text('{}', encoding='utf-8')
    monkeypatch.setattr(demo_run, 'DEMO', tmp_path)
    monkeypatch.setattr(demo_run, 'IMAGES', {'test': 40, 'calibration': 10})
    monkeypatch.setattr(demo_run, 'render_command', lambda folder, split, count, seed: [
        sys.executable, '-c', RENDERER, str(folder), split, str(count)])
    return tmp_path / 'run'


def test_demo_shows_both_variants_and_where_the_report_is(demo, capsys):
    assert main(['demo', '--quiet', '--out', str(demo)]) == 0
    printed = capsys.readouterr().out
    for part in ('stock', 'patched', 'images/min', str(demo / 'report.md'),
                 str(demo / 'overview.png')):
        assert part in printed
    report = RunFolder(demo).read_report()
    assert report['images'] == {'test': {'images': 40, 'positive': 20},
                                'calibration': {'images': 10, 'positive': 5}}


def test_a_finished_demo_is_run_again_and_an_interrupted_one_goes_on(demo):
    main(['demo', '--quiet', '--out', str(demo)])
    rows = RunFolder(demo).variant('stock').rows_file(1)
    first = rows.stat().st_ino, rows.stat().st_mtime_ns
    main(['demo', '--quiet', '--out', str(demo)])
    again = rows.stat().st_ino, rows.stat().st_mtime_ns
    assert again != first
    (demo / 'report.json').unlink()
    main(['demo', '--quiet', '--out', str(demo)])
    assert (rows.stat().st_ino, rows.stat().st_mtime_ns) == again
    assert len(list(read_rows(rows))) == 50


def test_a_failing_renderer_is_one_line(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo_run, 'IMAGES', {'broken': 1})
    assert main(['demo', '--quiet', '--out', str(demo)]) == 2
    assert 'could not be rendered; delete that folder' in capsys.readouterr().err
