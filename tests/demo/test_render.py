"""The renderer's folder: manifest, resumption, refusal to mix."""
import json

import pytest

from lmdeploy_ext.eval.demo import render
from lmdeploy_ext.eval.demo.render import RenderError, main, render_split


def rows_of(folder):
    lines = (folder / 'manifest.jsonl').read_text(encoding='utf-8').splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp('set') / 'demo'
    render_split(out, 'test', 6)
    return out


def test_manifest_lists_every_file(folder):
    rows = rows_of(folder)
    assert [row['id'] for row in rows] == [f'test-{index:06d}' for index in range(6)]
    for row in rows:
        assert (folder / row['image']).is_file()
        assert row['label'] in ('是', '否') and row['split'] == 'test'
        assert {'width', 'height', 'beds', 'bunks'} <= set(row)


def test_the_same_seed_gives_the_same_bytes_with_more_processes(folder, tmp_path):
    render_split(tmp_path / 'again', 'test', 8, jobs=2)
    for row in rows_of(folder):
        again = tmp_path / 'again' / row['image']
        assert again.read_bytes() == (folder / row['image']).read_bytes()


def test_what_is_there_is_kept_and_what_is_missing_drawn(tmp_path):
    out = tmp_path / 'demo'
    render_split(out, 'test', 4)
    whole = (out / 'manifest.jsonl').read_text(encoding='utf-8')
    kept, lost = out / 'images/test-000001.jpg', out / 'images/test-000002.jpg'
    before, bytes_of_lost = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    (out / 'manifest.jsonl').write_text(whole[:-25], encoding='utf-8')  # a half-written line
    render_split(out, 'test', 4)
    assert (out / 'manifest.jsonl').read_text(encoding='utf-8') == whole
    assert kept.stat().st_mtime_ns == before and lost.read_bytes() == bytes_of_lost


def test_two_splits_share_a_folder(tmp_path):
    render_split(tmp_path / 'demo', 'test', 2)
    render_split(tmp_path / 'demo', 'calibration', 2)
    splits = [row['split'] for row in rows_of(tmp_path / 'demo')]
    assert splits == ['calibration'] * 2 + ['test'] * 2


def test_another_seed_is_refused(folder):
    with pytest.raises(RenderError, match='holds pictures of seed 0, not 5; give another --out'):
        render_split(folder, 'test', 6, seed=5)


def test_another_version_is_refused(folder, monkeypatch):
    monkeypatch.setattr(render, 'VERSION', 99)
    with pytest.raises(RenderError, match=r'holds pictures of version \d+, not 99'):
        render_split(folder, 'test', 6)


def test_a_folder_with_other_files_is_refused(tmp_path, capsys):
    (tmp_path / 'thesis.txt').write_text('mine')
    with pytest.raises(SystemExit) as exit_:
        main(['--out', str(tmp_path), '--count', '1'])
    assert exit_.value.code == 2
    assert 'holds other files; give an empty or a new folder' in capsys.readouterr().err


def test_an_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RenderError, match='cannot be made'):
        render_split(tmp_path / 'file', 'test', 1)


@pytest.mark.parametrize('option', [['--count', '0'], ['--jobs', '0'], ['--seed', '-1']])
def test_bad_numbers_are_refused(tmp_path, option, capsys):
    with pytest.raises(SystemExit):
        main(['--out', str(tmp_path / 'new'), *option])
    assert 'must be at least 1' in capsys.readouterr().err
