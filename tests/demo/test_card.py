"""The README's table of figures, and the contact sheet."""
import json

import cv2
import pytest

from lmdeploy_ext.eval.demo import card, samples
from lmdeploy_ext.eval.demo.card import BEGIN, END, CardError, block, replace_block


def run_of(**changes) -> dict:
    share = {'value': 0.75, 'low': 0.7, 'high': 0.8, 'count': 3, 'total': 4}
    return {
        'weights_sha256': 'ab' * 32, 'set_version': 2, 'split': 'test', 'count': 4, 'seed': 0,
        'max_dynamic_patch': 12, 'commit': {'id': 'c' * 40, 'dirty': True},
        'machine': {'cpu': 'A CPU', 'cores': 2},
        'figures': {'all': {'recall': share, 'precision': {**share, 'value': None},
                            'accuracy': share}},
        **changes
    }


def test_the_table_gives_figures_intervals_and_commands():
    text = block([run_of(), run_of(max_dynamic_patch=1)])
    assert '| 12 | 4 | 75.0 % (70.0 to 80.0) | none |' in text
    assert '--count 4 --seed 0 --max-dynamic-patch 1' in text
    assert 'with uncommitted changes' in text and 'A CPU, 2 cores' in text


@pytest.mark.parametrize('name,value', [('weights_sha256', 'cd' * 32), ('set_version', 1),
                                        ('count', 5)])
def test_runs_that_differ_are_refused(name, value):
    with pytest.raises(CardError, match=f'the runs differ in {name} .*; run check.py again'):
        block([run_of(), run_of(**{name: value})])


def test_only_the_block_is_replaced(tmp_path):
    readme, run = tmp_path / 'README.md', tmp_path / 'run.json'
    readme.write_text(f'before\n{BEGIN}\nold\n{END}\nafter\n', encoding='utf-8')
    run.write_text(json.dumps(run_of()), encoding='utf-8')
    assert card.main([str(run), '--readme', str(readme)]) == 0
    text = readme.read_text(encoding='utf-8')
    assert text.startswith('before\n') and text.endswith('\nafter\n') and 'old' not in text


def test_a_readme_without_marks_is_refused():
    with pytest.raises(CardError, match='put both marks back'):
        replace_block('nothing here', 'new')


def test_contact_sheet(tmp_path, capsys):
    sheet = samples.contact_sheet('test', 0, columns=2, rows=1)
    assert sheet.shape[2] == 3 and sheet.std() > 20
    with pytest.raises(SystemExit):
        samples.main(['--out', str(tmp_path / 'sheet.gif')])
    assert 'give a file that ends in .jpg or .png' in capsys.readouterr().err


def test_the_committed_contact_sheet_is_small_and_readable():
    file = card.README.with_name('samples.jpg')
    assert file.stat().st_size <= 300_000
    assert cv2.imread(str(file)).std() > 20
