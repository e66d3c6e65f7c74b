"""Running variants in processes of their own, with a fake in place of LMDeploy."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lmdeploy_ext.classify.errors import ClassifyError
from lmdeploy_ext.classify.result_file import read_rows
from lmdeploy_ext.eval import resume, runner
from lmdeploy_ext.eval.__main__ import main
from lmdeploy_ext.eval.run_folder import RunFolder, stored_records

FAKE = Path(__file__).with_name('fake_worker.py')
ROOT = Path(__file__).parents[2]


@pytest.fixture
def inputs(tmp_path):
    """Flags of `run`: a model folder and a manifest of 24 test and 8 calibration images."""
    model = tmp_path / 'model'
    model.mkdir()
    (model / 'config.json').write_text('{"model_type": "internvl_chat"}', encoding='utf-8')
    manifest = tmp_path / 'manifest.jsonl'
    with open(manifest, 'w', encoding='utf-8') as file:
        for number in range(32):
            (tmp_path / f'{number}.jpg').write_bytes(b'jpeg')
            file.write(
                json.dumps({
                    'id': str(number),
                    'image': f'{number}.jpg',
                    'label': '是否'[number % 2],
                    'split': 'test' if number < 24 else 'calibration'
                }) + '\n')
    return [
        '--model',
        str(model), '--manifest',
        str(manifest), '--out',
        str(tmp_path / 'run'), '--quiet', '--concurrency', '2', '--warmup', '2'
    ]


def test_run_writes_both_reports_and_prints_the_table(fake_worker, inputs, tmp_path, capsys):
    assert main(['run', *inputs]) == 0
    report = RunFolder(tmp_path / 'run').read_report()
    assert [variant['name'] for variant in report['variants']] == ['stock', 'patched']
    assert report['variants'][0]['env'] == {'LMDEPLOY_EXT_PATCHES': 'cpu'}
    assert report['variants'][0]['throughput']['qpm'] == pytest.approx(600)
    assert (tmp_path / 'run' / 'report.md').is_file()
    printed = capsys.readouterr().out
    assert 'stock' in printed and '100.0 (75.8–100.0)' in printed
    assert str(tmp_path / 'run' / 'report.md') in printed


def test_variants_see_the_same_files_in_the_same_order(fake_worker, inputs, tmp_path):
    main(['run', *inputs])
    folder = RunFolder(tmp_path / 'run')
    orders = [[row.id for row in read_rows(folder.variant(name).rows_file(1))]
              for name in ('stock', 'patched')]
    assert orders[0] == orders[1] == [image.id for image in folder.read_images()]


def test_a_failed_variant_costs_no_other_rows(fake_worker, inputs, tmp_path, capsys):
    variants = 'broken:FAIL_AFTER=0,half:FAIL_AFTER=9,patched'
    assert main(['run', *inputs, '--variants', variants]) == 1
    report = RunFolder(tmp_path / 'run').read_report()
    broken, half, patched = report['variants']
    assert broken['images'] == 0
    assert broken['error'].startswith('RuntimeError: the engine stopped (exit code 1; see ')
    assert (half['images'], half['pending']) == (9, 23)
    assert (patched['images'], patched['error']) == (24, None)
    assert 'broken ended early: RuntimeError: the engine stopped' in capsys.readouterr().out


def test_no_variant_answered(fake_worker, inputs, capsys):
    assert main(['run', *inputs, '--variants', 'broken:FAIL_AFTER=0']) == 2
    assert 'error: no variant answered: RuntimeError: the engine stopped' in capsys.readouterr(
    ).err


def test_the_same_command_goes_on(fake_worker, inputs, tmp_path):
    command = ['run', *inputs, '--variants', 'half:FAIL_AFTER=9']
    main(command)
    for done in (18, 27, 32):
        main(command)
        rows = list(read_rows(RunFolder(tmp_path / 'run').variant('half').rows_file(1)))
        assert len(rows) == done
    assert len({row.id for row in rows}) == 32
    assert main(command) == 0


def test_a_folder_of_another_run_is_not_mixed(fake_worker, inputs, tmp_path, capsys):
    main(['run', *inputs])
    capsys.readouterr()
    assert main(['run', *inputs, '--prompt', '?', '--variants', 'stock']) == 2
    error = capsys.readouterr().err
    assert 'another run (prompt, variants differ)' in error and '--overwrite' in error
    assert main(['run', *inputs, '--prompt', '?', '--variants', 'stock', '--overwrite']) == 0
    assert [path.name for path in (tmp_path / 'run' / 'variants').iterdir()] == ['stock']


def test_a_run_that_is_older_than_a_setting_goes_on(fake_worker, inputs, tmp_path, capsys):
    command = ['run', *inputs, '--variants', 'half:FAIL_AFTER=20']
    main(command)
    folder = RunFolder(tmp_path / 'run')
    run = folder.read_run()
    del run['settings']['prefix_caching']
    folder.write_run(run)
    capsys.readouterr()
    assert main([*command, '--prefix-caching']) == 2
    assert 'another run (prefix_caching differ)' in capsys.readouterr().err
    assert main(command) == 0


def test_rows_of_two_commits_are_told_apart(fake_worker, inputs, tmp_path, monkeypatch):
    command = ['run', *inputs, '--variants', 'half:FAIL_AFTER=20']
    main(command)
    assert RunFolder(tmp_path / 'run').read_report()['resumed'] == []
    newer = {'id': 'f' * 40, 'dirty': False}
    monkeypatch.setattr(resume, 'commit', lambda: newer)
    assert main(command) == 0
    assert main(command) == 0
    assert RunFolder(tmp_path / 'run').read_report()['resumed'] == [newer]
    assert f'| resumed at | {"f" * 40} |' in (tmp_path / 'run' / 'report.md').read_text('utf-8')


def test_a_manifest_that_changed_is_noticed(fake_worker, inputs, tmp_path, capsys):
    main(['run', *inputs])
    manifest = tmp_path / 'manifest.jsonl'
    text = manifest.read_text(encoding='utf-8')
    manifest.write_text('\n'.join(text.splitlines()[:20]) + '\n', encoding='utf-8')
    assert main(['run', *inputs]) == 2
    assert 'images or labels of the manifest differ' in capsys.readouterr().err


def test_rounds_take_the_variants_in_turn(fake_worker, inputs, tmp_path):
    assert main(['run', *inputs, '--rounds', '2']) == 0
    folder = RunFolder(tmp_path / 'run')
    written = [
        folder.variant(name).times_file(number).stat().st_mtime_ns for number in (1, 2)
        for name in ('stock', 'patched')
    ]
    assert written == sorted(written)
    assert folder.read_report()['comparisons'][0]['qpm_ratio']['rounds'] == 2


def test_another_target_needs_no_new_rows(fake_worker, inputs, tmp_path, capsys):
    main(['run', *inputs])
    capsys.readouterr()
    assert main(['score', str(tmp_path / 'run'), '--target-recall', '0.5']) == 0
    assert RunFolder(tmp_path / 'run').read_report()['settings']['target_recall'] == .5
    assert 'stock' in capsys.readouterr().out
    assert main(['score', str(tmp_path / 'run'), '--target-recall', '0']) == 2
    assert '--target-recall 0 cannot be reached' in capsys.readouterr().err


@pytest.mark.parametrize('flags, message', [
    (['--model', 'nowhere'], 'nowhere is no model folder'),
    (['--manifest', 'nowhere.jsonl'], 'cannot read nowhere.jsonl'),
    (['--variants', 'stok'], 'did you mean stock?'),
    (['--labels', '是'], 'two or more'),
    (['--labels', '是,,否'], 'empty label'),
    (['--labels', 'yes,no'], "has the label '是'; expected one of yes, no"),
    (['--positive', 'yes'], "positive label 'yes' is not among"),
    (['--target-recall', '1.5'], '--target-recall 1.5'),
    (['--calibration-split', 'test'], 'is the test split too'),
    (['--test-split', 'dev'], "no row of the split 'dev'; found calibration, test"),
    (['--rounds', '0'], '--rounds 0'),
    (['--concurrency', '0'], '--concurrency 0'),
    (['--warmup', '-1'], '--warmup -1'),
    (['--limit', '1'], 'all test images are labelled 是'),
    (['--out', '/proc/run'], 'cannot write /proc'),
])
def test_wrong_input_is_one_line_before_any_model(inputs, monkeypatch, capsys, flags, message):
    monkeypatch.setattr(runner, 'run_variant', lambda *_: pytest.fail('a model would be loaded'))
    assert main(['run', *inputs, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and message in error
    assert error.count('\n') == 1


def test_a_folder_with_other_files_is_left_alone(inputs, tmp_path, capsys):
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / 'thesis.tex').write_text('', encoding='utf-8')
    assert main(['run', *inputs]) == 2
    assert 'is not empty and holds no run' in capsys.readouterr().err


def test_score_of_no_run(tmp_path, capsys):
    assert main(['score', str(tmp_path)]) == 2
    assert 'holds no run.json' in capsys.readouterr().err


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_ends_its_process_and_keeps_rows(inputs, tmp_path, number):
    code = ('import sys\n'
            'from lmdeploy_ext.eval import runner\n'
            'from lmdeploy_ext.eval.__main__ import main\n'
            'runner.worker_command = lambda folder, variant, number: [\n'
            f'    sys.executable, {str(FAKE)!r}, str(folder.path), variant.name, str(number)]\n'
            'sys.exit(main(sys.argv[1:]))\n')
    process = subprocess.Popen(
        [sys.executable, '-c', code, 'run', *inputs, '--variants', 'slow:HANG=1'],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ, 'PYTHONPATH': str(ROOT)
        })
    times = RunFolder(tmp_path / 'run').variant('slow').times_file(1)
    deadline = time.monotonic() + 20
    while len(stored_records(times)) < 2 and time.monotonic() < deadline:
        time.sleep(.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert 'the same command goes on' in error
    assert len(stored_records(times)) == 2
    worker = RunFolder(tmp_path / 'run').variant('slow').read_process()['pid']
    assert not psutil.pid_exists(worker)


def test_errors_are_of_one_family():
    from lmdeploy_ext.eval.errors import EvalError
    assert issubclass(EvalError, ClassifyError)
