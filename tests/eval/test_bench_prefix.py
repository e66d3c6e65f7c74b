"""`make bench-prefix`: its rows, its targets, what happens when an engine fails, not how fast this
machine is. The engines are fakes but for the last test."""
import json
import os
import sys
from pathlib import Path

import pytest

from lmdeploy_ext.eval.bench import measured, prefix, prefix_process
from lmdeploy_ext.eval.bench.prefix_process import EngineProcess
from lmdeploy_ext.eval.bench.prefix_scope import ON_ALONE
from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.eval.provenance import check_result, gpus


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """The benchmark sees no GPU, wherever this runs."""
    monkeypatch.setattr(prefix, 'gpus', list)


@pytest.fixture
def on_gpu(monkeypatch, tmp_path):
    """The benchmark sees a GPU; returns arguments that spare it a checkpoint."""
    monkeypatch.setattr(prefix, 'gpus', lambda: ['NVIDIA H200'])
    (tmp_path / 'My Model').mkdir()
    (tmp_path / 'My Model' / 'config.json').write_text('{}', encoding='utf-8')
    return ['--model', str(tmp_path / 'My Model')]


@pytest.fixture
def bench(tmp_path, fake_engine):
    """Run the benchmark; returns its exit code, result and table."""
    def run(*arguments):
        out = tmp_path / 'prefix.json'
        code = prefix.main([*arguments, '--out', str(out)])
        return code, json.loads(out.read_text('utf-8')), out.with_suffix('.md').read_text('utf-8')

    return run


def row_of(result, part, cache='on'):
    row, = [row for row in result['rows'] if (row['part'], row.get('cache')) == (part, cache)]
    return row


def test_every_scenario_is_measured_with_the_cache_off_and_on(bench, capsys):
    code, result, table = bench()
    assert code == 0
    check_result(result)
    assert [(row['part'], row.get('cache')) for row in result['rows']] == [
        ('setup', None), ('questions', 'off'), ('questions', 'on'), ('questions', ON_ALONE),
        ('instruction', 'off'), ('instruction', 'on'), ('unique', 'off'), ('unique', 'on')]
    assert result['command'][:3] == ['python', '-m', 'lmdeploy_ext.eval.bench.prefix']
    assert result['targets'] == []  # they are about a GPU
    assert table.strip() in capsys.readouterr().out
    for part in ('The model of the demo, the PyTorch engine on', '| on, no feature cache |',
                 '## Nothing in common'):
        assert part in table
    assert 'on the GPU' not in table


def test_figures_are_medians_and_ratios_those_of_one_round(bench):
    _, result, _ = bench()
    asked = row_of(result, 'questions')
    # the images of three rounds; in one of them the machine was half as fast
    assert (asked['images'], asked['requests']) == (3, 24)
    assert (asked['first_ms'], asked['later_ms'], asked['ratio']) == (100, 20, 0.2)
    assert row_of(result, 'questions', 'off')['ratio'] == 0.8
    assert row_of(result, 'questions', ON_ALONE)['ratio'] == 0.8
    told = row_of(result, 'instruction')
    assert (told['qpm'], told['qpm_rounds'], told['ratio']) == (600, [600, 300, 600], 2)
    assert (told['rounds'], told['requests'], told['input_tokens']) == (3, 300, 500)
    assert row_of(result, 'unique')['ratio'] == 1
    assert told['cached_share'] == 0.25
    assert row_of(result, 'instruction', 'off')['cached_share'] is None


def test_on_a_gpu_there_are_targets_and_features(bench, on_gpu):
    code, result, table = bench(*on_gpu)
    assert code == 0
    assert row_of(result, 'features') == {'part': 'features', 'cache': 'on', 'requests': 624,
                                          'virtual_share': 1, 'on_gpu_share': 1}
    assert [(target['want'], target['got'], target['met']) for target in result['targets']] == [
        (0.3, 0.2, True), (1.4, 2, True), (0.98, 1, True), (1, 1, True), (1, 1, True)]
    assert '100.0 % of the requests had virtual tokens' in table
    assert 'My Model, TurboMind on NVIDIA H200, 64 requests in flight' in table


def test_the_pytorch_engine_has_no_virtual_tokens(bench, on_gpu):
    _, result, table = bench(*on_gpu, '--backend', 'pytorch')
    row = row_of(result, 'features')
    assert (row['virtual_share'], row['on_gpu_share']) == (None, 0)
    assert 'virtual tokens.' not in table
    assert [target['met'] for target in result['targets']] == [True, True, True, False]


@pytest.mark.parametrize('how, reason', [
    ('FAKE_RAISES', 'RuntimeError: it cannot'),
    ('FAKE_DIES', 'OutOfMemory: no room (exit code 7)'),
])
def test_a_failure_costs_only_its_own_rows(bench, on_gpu, monkeypatch, capsys, how, reason):
    monkeypatch.setenv(how, 'on instruction')
    code, result, table = bench(*on_gpu)
    assert code == 1
    check_result(result)
    assert row_of(result, 'instruction') == {'part': 'instruction', 'cache': 'on',
                                             'reason': reason}
    assert row_of(result, 'instruction', 'off')['rounds'] == 3
    # also what comes after it
    assert row_of(result, 'unique')['rounds'] == 3
    assert row_of(result, 'questions', ON_ALONE)['ratio'] == 0.8
    assert len(result['targets']) == 4
    assert f'- instruction, cache on: {reason}' in table
    told = capsys.readouterr().out
    assert f'round 1, instruction, cache on: FAILED: {reason}' in told
    assert 'round 2, instruction, cache on' not in told
    assert ('OutOfMemory' in told) == (how == 'FAKE_DIES')


def test_an_engine_that_does_not_start_is_not_started_again(bench, monkeypatch, capsys):
    monkeypatch.setenv('FAKE_DIES', 'on start')
    code, result, table = bench()
    assert code == 1
    reason = 'the engine does not start: OutOfMemory: no room (exit code 7)'
    assert {row['part']: row['reason'] for row in result['rows'] if row.get('reason')} == {
        'questions': reason, 'instruction': reason, 'unique': reason}
    assert row_of(result, 'unique', 'off')['rounds'] == 3
    assert capsys.readouterr().out.count('Traceback …') == 1


def test_warnings_of_an_engine_are_in_the_table(bench):
    _, result, table = bench()
    assert result['rows'][0]['warnings'] == ['cache on: no virtual tokens']
    assert '- cache on: no virtual tokens' in table


def test_processes_end_with_the_benchmark(bench, monkeypatch):
    started = []
    start = EngineProcess.start

    def noted(engine):
        about = start(engine)
        started.append(about['pid'])
        return about

    monkeypatch.setattr(EngineProcess, 'start', noted)
    bench('--quick')
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize('arguments, message', [
    (['--rounds', '0'], '--rounds 0 is too few'),
    (['--model', 'nowhere'], 'nowhere is no model folder'),
    (['--backend', 'turbomind'], 'choose --backend pytorch'),
])
def test_wrong_arguments(fake_engine, arguments, message, capsys, tmp_path):
    assert prefix.main([*arguments, '--out', str(tmp_path / 'x.json')]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and message in error and error.count('\n') == 1
    assert not (tmp_path / 'x.json').exists()


@pytest.mark.parametrize('name, value, message', [
    ('PREFIX_CACHE', 'off', 'switches off what is to be measured; unset it'),
    ('FEATURE_CACHE_MB', '0', 'LMDEPLOY_EXT_FEATURE_CACHE_MB=0 switches off'),
    ('VISION', 'off', 'LMDEPLOY_EXT_VISION=off switches off'),
    ('PREFIX_CACHE', 'images', 'is not content, text or off'),
])
def test_settings_that_leave_nothing_to_measure(fake_engine, name, value, message, capsys,
                                                monkeypatch):
    monkeypatch.setenv(f'LMDEPLOY_EXT_{name}', value)
    assert prefix.main([]) == 2
    assert message in capsys.readouterr().err


def test_nothing_measured_is_no_result(fake_engine, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prefix_process, 'engine_command', lambda: [
        sys.executable, '-c', 'raise SystemExit("no engine here")'])
    assert prefix.main(['--out', str(tmp_path / 'x.json')]) == 2
    assert ('nothing was measured: the engine does not start: no engine here (exit code 1)'
            in capsys.readouterr().err)
    assert not (tmp_path / 'x.json').exists()


def test_without_git_the_commit_is_asked_for_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(measured, 'commit', lambda: None)
    monkeypatch.setattr(prefix, 'run', lambda *_: pytest.fail('it measured'))
    assert prefix.main([]) == 2
    assert 'give the commit with --commit' in capsys.readouterr().err


def test_results_of_other_engines_and_models_have_files_of_their_own(on_gpu, monkeypatch):
    def name(*arguments):
        return prefix._name(prefix._parser().parse_args(arguments))

    assert name() == name('--backend', 'turbomind') == 'prefix-h200'
    assert name('--backend', 'pytorch', *on_gpu) == 'prefix-h200-pytorch-my-model'
    monkeypatch.setattr(prefix, 'gpus', list)
    assert name() == name('--backend', 'pytorch') == 'prefix-cpu'


def test_a_model_of_random_weights_is_written_elsewhere(tmp_path):
    folder = prefix.random_model(tmp_path, 'tiny', 'cpu')
    assert Path(folder, 'model.safetensors').is_file()
    with pytest.raises(EvalError, match="no shape 'tinny'.*; give a model with --model"):
        prefix.random_model(tmp_path, 'tinny', 'cpu')


@pytest.mark.skipif(bool(gpus()), reason='see tests/gpu/test_bench_prefix.py')
@pytest.mark.timeout(180)
def test_the_real_thing(tmp_path, monkeypatch):
    """LMDeploy on the demo model finds the instruction and known images in its cache, and nothing
    of what it has not seen."""
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    assert prefix.main(['--quick', '--out', str(tmp_path / 'prefix.json')]) == 0
    result = json.loads((tmp_path / 'prefix.json').read_text('utf-8'))
    assert row_of(result, 'unique')['cached_share'] == 0
    assert row_of(result, 'instruction')['cached_share'] > 0.4
    asked = row_of(result, 'questions')
    # 7 of 8 questions found two tiles of 64 tokens, all whole blocks before the text
    assert asked['cached_share'] == pytest.approx(7 * 128 / (8 * asked['input_tokens']), abs=0.01)
    assert row_of(result, 'questions', 'off')['cached_share'] is None
    assert result['rows'][0]['warnings'] == []
    for part, cache in (('instruction', 'off'), ('instruction', 'on')):
        assert row_of(result, part, cache)['input_tokens'] > 1000
