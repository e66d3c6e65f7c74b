"""`make bench-vit`: what its result holds, not how fast this machine is."""
import json
import re

import pytest
import torch
from PIL import Image

from lmdeploy_ext.eval.bench import measured, vit, vit_table, vit_ways
from lmdeploy_ext.eval.bench.vit_model import vision_model, with_sdpa
from lmdeploy_ext.eval.bench.vit_plot import draw
from lmdeploy_ext.eval.bench.vit_speed import Budget, interleaved
from lmdeploy_ext.eval.bench.vit_targets import targets
from lmdeploy_ext.eval.bench.vit_ways import (COMPILE, COMPILED_GRAPHS, EAGER, GRAPHS, SDPA, STOCK,
                                              TITLES, chosen, possible)
from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.eval.provenance import check_result

CPU, GPU = torch.device('cpu'), torch.device('cuda', 0)
QUICK = ['--quick', '--device', 'cpu', '--shape', 'tiny', '--tiles', '3,1,3',
         '--ways', 'eager,sdpa']


@pytest.fixture(scope='module')
def result(tmp_path_factory):
    """The result of a quick run, its files beside it."""
    out = tmp_path_factory.mktemp('bench') / 'vit.json'
    assert vit.main([*QUICK, '--out', str(out)]) == 0
    return json.loads(out.read_text(encoding='utf-8')), out


def rows_of(result, part):
    return [row for row in result[0]['rows'] if row['part'] == part]


def test_every_batch_size_is_measured_by_stock_and_the_chosen_ways(result):
    check_result(result[0])
    rows = rows_of(result, 'speed')
    assert [(row['tiles'], row['way']) for row in rows] == [
        (tiles, way) for tiles in (1, 3) for way in (STOCK, SDPA, EAGER)]
    for row in rows:
        low, high = row['ms_quartiles']
        assert 0 < low <= row['ms'] <= high
        assert row['tiles_per_second'] == pytest.approx(1000 * row['tiles'] / row['ms'],
                                                        rel=0.01, abs=0.06)
        if row['way'] == STOCK:
            assert row['ratio'] == 1


def test_all_ways_give_stocks_features(result):
    assert all(row['cosine'] >= 0.9999 for row in rows_of(result, 'speed'))


def test_what_was_measured_is_recorded(result):
    setup, = rows_of(result, 'setup')
    assert (setup['shape'], setup['dtype'], setup['device']) == ('tiny', 'float32', 'cpu')
    assert (setup['side'], setup['devices']) == (112, 1)
    assert result[0]['command'][:3] == ['python', '-m', 'lmdeploy_ext.eval.bench.vit']
    scheduler, = rows_of(result, 'scheduler')
    assert scheduler['images'] == 16 and scheduler['cpu_ms'] > 0 and scheduler['wall_ms'] > 0


def test_on_a_cpu_only_the_scheduler_has_a_target(result):
    assert [target['want'] for target in result[0]['targets']] == [0.3]


def test_table_and_picture_lie_beside_the_result(result, capsys):
    text = result[1].with_suffix('.md').read_text(encoding='utf-8')
    for part in ('the tiny model', TITLES[EAGER], '## Tiles a second', '16 images', '| cosine |'):
        assert part in text
    assert '## CUDA graphs' not in text
    with Image.open(result[1].with_suffix('.png')) as picture:
        assert picture.width > 1000


@pytest.mark.parametrize('arguments, message', [
    (['--tiles', '0'], 'expected batch sizes from 1 to 512'),
    (['--tiles', '1,,2'], 'expected batch sizes from 1 to 512'),
    (['--tiles', '-3'], 'expected batch sizes from 1 to 512'),
    (['--tiles', '513'], 'expected batch sizes from 1 to 512'),
    (['--tiles', 'many'], 'expected batch sizes from 1 to 512'),
    (['--ways', 'egaer'], "no way 'egaer'; .*did you mean 'eager'"),
    (['--ways', ''], "no way ''"),
    (['--ways', 'graphs'], "'graphs' is not there on 1 device.* of type cpu"),
    (['--device', 'tpu'], 'expected cpu, cuda'),
    (['--device', 'cpu:1'], 'expected cpu, cuda'),
    (['--device', 'cuda:99'], r'torch sees \d+ GPU'),
])
def test_wrong_arguments_are_told_in_one_line_at_once(arguments, message, capsys, tmp_path):
    options = ['--device', 'cpu', '--shape', 'tiny', '--out', str(tmp_path / 'out.json')]
    assert vit.main([*options, *(f'{name}={value}' for name, value in [arguments])]) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and error.count('\n') == 1
    assert re.search(message, error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('arguments', [['--shape', '9b'], ['--dtype', 'int8'], ['--rounds', '3']])
def test_unknown_choices_end_with_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        vit.main(arguments)
    assert ended.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_without_git_the_commit_is_asked_for_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(measured, 'commit', lambda: None)
    monkeypatch.setattr(vit, 'run', lambda *_: pytest.fail('it measured'))
    assert vit.main(['--device', 'cpu']) == 2
    assert 'give the commit with --commit' in capsys.readouterr().err


def test_a_given_commit_is_recorded(tmp_path, result):
    out = tmp_path / 'vit.json'
    assert vit.main([*QUICK[:5], '--tiles', '1', '--ways', 'eager', '--commit', 'abc123',
                     '--out', str(out)]) == 0
    assert json.loads(out.read_text(encoding='utf-8'))['commit'] == {'id': 'abc123',
                                                                     'dirty': None}


def test_results_of_other_shapes_and_dtypes_do_not_replace_the_usual_ones(monkeypatch):
    assert vit._name([CPU], 'demo', 'float32') == 'vit-cpu'
    assert vit._name([CPU], '8b', 'float32') == 'vit-cpu-8b'
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'NVIDIA H200')
    assert vit._name([GPU], '8b', 'float16') == 'vit-h200'
    assert vit._name([GPU] * 2, '8b', 'bfloat16') == 'vit-h200-x2-bfloat16'


def test_ways_are_those_that_the_devices_have():
    assert possible([CPU]) == [STOCK, SDPA, EAGER, COMPILE]
    assert possible([GPU]) == [STOCK, SDPA, EAGER, GRAPHS, COMPILE, COMPILED_GRAPHS]
    assert possible([GPU, GPU]) == list(TITLES)
    assert chosen(['graphs'], [GPU]) == [STOCK, GRAPHS]
    with pytest.raises(EvalError, match="'replicas' is not there on 1 device"):
        chosen(['replicas'], [GPU])


def test_a_way_that_does_not_run_is_left_out_and_told(monkeypatch, result):
    def no_compiler(*_, **__):
        raise RuntimeError('no working C++ compiler\nand much more')
    monkeypatch.setattr(vit_ways, 'EagerBackend', no_compiler)
    backends, notes = vit_ways.build([STOCK, EAGER], 'tiny', [CPU], torch.float32, 2)
    assert list(backends) == [STOCK]
    assert notes == [{'part': 'left out', 'way': EAGER, 'reason': 'no working C++ compiler'}]
    told = f'Not measured: {TITLES[EAGER]}: no working C++ compiler'
    with_note = {**result[0], 'rows': [*result[0]['rows'], *notes]}
    assert told in vit_table.table(with_note) and told in vit_table.summary(with_note)


def test_without_stock_there_is_no_result(monkeypatch, capsys):
    def no_memory(*_, **__):
        raise torch.cuda.OutOfMemoryError('out of memory')
    monkeypatch.setattr(vit_ways, 'UpstreamBackend', no_memory)
    assert vit.main(QUICK) == 2
    assert 'does not run in float32 on cpu: out of memory' in capsys.readouterr().err


def test_a_busy_machine_is_told(result):
    def with_load(load):
        setup = {**rows_of(result, 'setup')[0], 'load': load}
        return {**result[0], 'rows': [setup, *(row for row in result[0]['rows']
                                               if row['part'] != 'setup')]}
    cores = result[0]['machine']['cores']
    assert 'The machine was busy' in vit_table.summary(with_load(3.0 * cores))
    assert 'The machine was busy' in vit_table.table(with_load(3.0 * cores))
    assert 'busy' not in vit_table.table(with_load(0.0))


def test_ways_take_turns_and_the_first_call_of_a_turn_is_not_counted():
    log = []
    works = {name: lambda name=name: log.append(name) or len(log) for name in 'abc'}
    budget = Budget(seconds=0, least=2, most=5, turn_seconds=60, turn_most=2)
    samples = interleaved(works, budget)
    assert ''.join(log) == 'aaabbbccc' + 'bbbcccaaa'
    assert samples['a'] == [2, 3, 17, 18]
    endless = Budget(seconds=60, least=1, most=4, turn_seconds=0, turn_most=9)
    assert [len(own) for own in interleaved(works, endless).values()] == [4, 4, 4]


def test_the_sdpa_variant_shares_stocks_weights_and_leaves_it_as_it_is():
    model = vision_model('tiny', CPU, torch.float32)
    with_it = with_sdpa(model)
    assert with_it.mlp1[1].weight is model.mlp1[1].weight
    layers = [which.vision_model.encoder.layers[0].attn for which in (model, with_it)]
    assert layers[1].attention.qkv.weight is layers[0].qkv.weight
    assert type(layers[0]).__name__ == 'InternAttention'


def test_the_tower_of_a_released_model_comes_without_its_language_model():
    model = vision_model('tiny', CPU, torch.float32)
    assert not hasattr(model, 'language_model')
    assert {name.split('.')[0] for name in model.state_dict()} == {'vision_model', 'mlp1'}


def speed(tiles, way, ms, stock_ms=40.0):
    return {'part': 'speed', 'tiles': tiles, 'way': way, 'ms': ms, 'ms_quartiles': [ms, ms],
            'runs': 9, 'tiles_per_second': round(1000 * tiles / ms, 1),
            'ratio': round(stock_ms / ms, 3), 'cosine': 0.9998}


def gpu_rows(devices=2, shape='8b', given_up=0):
    ms = {1: (13.4, 12.1, 11.0, 4.5, 9.0, 4.4, 4.6),
          13: (62.0, 26.0, 25.9, 25.7, 23.7, 23.8, 13.0),
          64: (287.0, 118.0, 117.0, 117.0, 108.0, 108.0, 62.0),
          104: (466.0, 192.0, 190.0, 190.0, 176.0, 177.0, 98.0)}
    ways = list(TITLES)[:None if devices > 1 else -1]
    return [{'part': 'setup', 'shape': shape, 'dtype': 'float16', 'side': 448, 'device': 'cuda:0',
             'devices': devices, 'device_name': 'NVIDIA H200', 'threads': 16, 'load': 0.2},
            *({'part': 'graphs', 'way': way, 'graphs': 8 - given_up, 'given_up': given_up,
               'mib': 412.0, 'device_mib': 530.0, 'capture_seconds': 2.1}
              for way in (GRAPHS, COMPILED_GRAPHS)),
            *(speed(tiles, way, taken, own[0]) for tiles, own in ms.items()
              for way, taken in zip(ways, own)),
            {'part': 'scheduler', 'images': 16, 'cpu_ms': 1.4, 'wall_ms': 1.2, 'added_ms': 0.3}]


def test_targets_of_a_gpu_name_the_fastest_way_and_are_met_from_their_figure_on():
    found = targets(gpu_rows())
    assert [(target['name'], target['got'], target['met']) for target in found] == [
        ('tile scheduler, ms a batch, below', 0.3, False),
        ('graphs of 1 to 8 tiles, MiB, below', 412.0, True),
        ('1 tile, times faster than stock (compiled-graphs)', 3.045, True),
        ('13 tiles, times faster than stock (compile)', 2.616, True),
        ('104 tiles, tiles/s (compile)', 590.9, True),
        ("64 tiles on two GPUs, times one's tiles/s (replicas)", 1.887, True)]


def test_figures_that_are_of_another_model_or_were_not_measured_are_no_targets():
    assert len(targets(gpu_rows(devices=1))) == 5
    assert len(targets(gpu_rows(devices=1, shape='1b'))) == 2
    assert len(targets(gpu_rows(devices=1, shape='demo'))) == 1
    assert len(targets(gpu_rows(devices=1, shape='1b', given_up=1))) == 1
    rows = [row for row in gpu_rows() if row.get('tiles') in (None, 1)]
    assert len(targets(rows)) == 3


def test_table_and_picture_of_two_gpus(result, tmp_path):
    rows = gpu_rows()
    both = {**result[0], 'rows': rows, 'targets': targets(rows)}
    text = vit_table.table(both)
    for part in ('InternVL2-8B', '2 × NVIDIA H200', '| 1 | 13.40 | 12.10 (1.11×)',
                 '## CUDA graphs', '| 8 | 412 | 530 | 2.1 |', '| 104 | 223.2 |',
                 '1.200 ms from the first', '0.300 ms longer'):
        assert part in text
    draw(both, tmp_path / 'vit.png')
    with Image.open(tmp_path / 'vit.png') as picture:
        assert picture.width > 1000
