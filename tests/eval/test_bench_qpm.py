"""`make bench-qpm`: its rows, its targets, its refusals; the variants are answered by a fake."""
import json

import pytest

from lmdeploy_ext.eval.bench import qpm
from lmdeploy_ext.eval.provenance import check_result


@pytest.fixture
def command(tmp_path, fake_worker):
    """A run over a small manifest in a folder of its own."""
    (tmp_path / 'model').mkdir()
    (tmp_path / 'model' / 'config.json').write_text('{}', encoding='utf-8')
    with open(tmp_path / 'manifest.jsonl', 'w', encoding='utf-8') as file:
        for number in range(40):
            (tmp_path / f'{number}.jpg').write_bytes(b'jpeg')
            file.write(json.dumps({'id': str(number), 'image': f'{number}.jpg',
                                   'label': '是否'[number % 2], 'split': 'test'}) + '\n')
    return ['--model', str(tmp_path / 'model'), '--manifest', str(tmp_path / 'manifest.jsonl'),
            '--work', str(tmp_path / 'work'), '--out', str(tmp_path / 'qpm.json'), '--rounds', '2']


def test_the_result_has_every_variant_beside_stock_and_both_targets(command, tmp_path, capsys):
    assert qpm.main(command) == 0
    result = json.loads((tmp_path / 'qpm.json').read_text(encoding='utf-8'))
    check_result(result)
    assert [row['variant'] for row in result['rows']] == ['stock', 'images-only', 'patched']
    assert all(row['qpm'] > 0 and row['images'] == 40 for row in result['rows'])
    assert [target['want'] for target in result['targets']] == [2, 1.3]
    table = (tmp_path / 'qpm.md').read_text(encoding='utf-8')
    assert table.strip() in capsys.readouterr().out
    for part in ('| stock |', '| patched |', 'patched to the image pipeline alone'):
        assert part in table


def test_a_finished_run_is_measured_anew(command, tmp_path):
    assert qpm.main(command) == 0
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.glob('work/variants/*/*.jsonl'))
    assert qpm.main(command) == 0
    after = sorted(path.stat().st_mtime_ns for path in tmp_path.glob('work/variants/*/*.jsonl'))
    assert len(after) == len(before) > 0 and after[0] > before[-1]


def test_targets_compare_with_stock_and_with_the_pipeline_alone():
    rows = [{'variant': 'stock'}, {'variant': 'images-only', 'ratio_to_stock': 2.5},
            {'variant': 'patched', 'ratio_to_stock': 3.0}]
    assert [(target['got'], target['met']) for target in qpm.targets(rows)] == [
        (3.0, True), (1.2, False)]


@pytest.mark.parametrize('arguments, message', [
    (['--model', 'nowhere'], 'nowhere is no model folder'),
    (['--manifest', 'nowhere.jsonl'], 'nowhere.jsonl'),
    (['--rounds', '0'], '--rounds 0 is too few'),
])
def test_wrong_arguments(command, arguments, message, capsys):
    assert qpm.main([*command, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_too_few_answers_to_time_are_no_result(command, tmp_path, capsys):
    lines = (tmp_path / 'manifest.jsonl').read_text(encoding='utf-8').splitlines(keepends=True)
    (tmp_path / 'manifest.jsonl').write_text(''.join(lines[:20]), encoding='utf-8')
    assert qpm.main(command) == 2
    assert 'too few for a steady state' in capsys.readouterr().err
    assert not (tmp_path / 'qpm.json').exists()
