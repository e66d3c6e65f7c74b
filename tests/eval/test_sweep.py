"""Recall against image tokens: figures by hand, the report of a sweep, and what `sweep` runs."""
import json

import numpy as np
import pytest

from lmdeploy_ext.eval import demo_run, plots, sweep_run
from lmdeploy_ext.eval.__main__ import main
from lmdeploy_ext.eval.bootstrap import difference, resample
from lmdeploy_ext.eval.compare import score
from lmdeploy_ext.eval.image_tokens import tile_tokens
from lmdeploy_ext.eval.provenance import write_json
from lmdeploy_ext.eval.report import render, summary, write_report
from lmdeploy_ext.eval.run_folder import RunFolder
from lmdeploy_ext.eval.sweep_plot import sweep_figure
from lmdeploy_ext.eval.sweep_record import targets
from lmdeploy_ext.eval.variants import parse_variants
from lmdeploy_ext.eval.worker import own_settings

from .conftest import answer_all, labelled_images, row, write_rows

PROMPT, TILE = 40, 64
CPU, ALL = {'LMDEPLOY_EXT_PATCHES': 'cpu'}, {'LMDEPLOY_EXT_PATCHES': 'all'}


def start(folder, variants, settings):
    """Make a started run one of these variants: environments, and own settings."""
    run = folder.read_run()
    folder.write_run({**run, 'variants': variants, 'variant_settings': settings})
    for name in variants:
        write_json(folder.variant(name).process_file,
                   {'versions': {}, 'patches': [], 'tile_tokens': TILE})


def with_tiles(folder, name, tiles):
    """Let each stored answer of a variant be of an image with so many tiles."""
    file = folder.variant(name).rows_file(1)
    header, *lines = file.read_text(encoding='utf-8').splitlines()
    rows = [{**json.loads(line), 'input_tokens': PROMPT + TILE * count}
            for line, count in zip(lines, tiles)]
    file.write_text('\n'.join([header, *map(json.dumps, rows)]) + '\n', encoding='utf-8')


@pytest.fixture
def small_run(empty_run):
    """Eight images, four of them positive; stock with 4 tiles and with 1, and ours with 2.

    Recall is 4 of 4, 2 of 4 and 3 of 4.
    """
    images = labelled_images(test=8, calibration=0)
    folder = empty_run(images, ['stock-4', 'stock-1', 'ours'])
    start(folder, {'stock-4': CPU, 'stock-1': CPU, 'ours': ALL},
          {'stock-1': {'max_dynamic_patch': 1}})
    for name, found, tiles in (('stock-4', 4, 4), ('stock-1', 2, 1), ('ours', 3, 2)):
        scores = [.1 if number % 2 or number >= 2 * found else .9 for number in range(8)]
        write_rows(folder, name, map(row, images, scores))
        with_tiles(folder, name, [tiles] * 8)
    return folder


def test_tokens_and_stock_at_equal_tokens_by_hand(small_run):
    sweep = score(small_run)['sweep']
    assert (sweep['prompt_tokens'], sweep['images'], sweep['threshold']) == (PROMPT, 8, .5)
    stock, one, ours = sweep['points']
    assert [point['tokens'] for point in sweep['points']] == [256, 64, 128]
    assert (stock['stock'], one['stock'], ours['stock']) == (True, True, False)
    assert (one['fewer'], ours['fewer']) == (4, 2)
    assert ours['answers']['recall_points']['value'] == -25
    assert one['at_threshold']['recall_points']['value'] == -50
    assert stock['answers']['precision']['value'] == 1
    # a third of the way from 64 to 256 tokens stock would have 1/2 + 1/3 * 1/2
    assert ours['between'] == ['stock-1', 'stock-4', pytest.approx(1 / 3)]
    assert ours['answers']['equal_tokens_points']['value'] == pytest.approx(75 - 200 / 3)
    assert stock['between'] is stock['answers']['equal_tokens_points'] is None
    text = render(score(small_run))
    assert 'without the 40 of the prompt' in text
    verdict, = (line for line in text.splitlines() if line.startswith('- ours against stock at'))
    assert '(128, between stock-1 and stock-4): +8.3 (' in verdict
    assert verdict.endswith('points of recall at one threshold: reached')
    assert '`LMDEPLOY_EXT_PATCHES=cpu` `max_dynamic_patch=1`' in text


def test_worse_than_stock_at_equal_tokens_is_said(small_run):
    with_tiles(small_run, 'ours', [4] * 8)
    report = score(small_run)
    assert report['sweep']['points'][2]['answers']['equal_tokens_points']['value'] == -25
    assert '-25.0 (-75.0 to +0.0) points of recall as answered: missed' in summary(report)


def test_a_difference_that_rounds_to_none_is_none(small_run):
    report = score(small_run)
    points = report['sweep']['points'][2]['answers']['equal_tokens_points']
    points.update(value=-.04, low=-.04, high=.04)
    assert '+0.0 (+0.0 to +0.0) points of recall as answered: reached' in summary(report)


def test_beyond_stocks_points_the_nearest_one_counts(small_run):
    with_tiles(small_run, 'ours', [5] * 8)
    report = score(small_run)
    assert report['sweep']['points'][2]['between'] == ['stock-4', 'stock-4', 0]
    assert 'nearest is stock-4)' in render(report)


def test_the_first_variants_threshold_is_everybodys(empty_run):
    images = labelled_images(test=4, calibration=2)
    folder = empty_run(images, ['stock-4', 'stock-1'], target_recall=1.)
    start(folder, {'stock-4': CPU, 'stock-1': CPU}, {})
    write_rows(folder, 'stock-4', map(row, images, (.9, .1, .8, .2, .7, .1)))
    write_rows(folder, 'stock-1', map(row, images, (.6, .1, .8, .2, .2, .1)))
    with_tiles(folder, 'stock-4', [4] * 6)
    sweep = score(folder)['sweep']
    assert sweep['threshold'] == .7
    assert sweep['points'][1]['at_threshold']['recall']['value'] == .5
    assert sweep['points'][1]['answers']['recall']['value'] == 1


def test_without_a_variant_of_one_tile_the_prompt_is_not_taken_off(small_run):
    with_tiles(small_run, 'stock-1', [1] * 7 + [3])
    report = score(small_run)
    assert report['sweep']['prompt_tokens'] is None
    assert report['sweep']['points'][0]['tokens'] == PROMPT + 4 * TILE
    assert 'Mean input tokens of a test image, prompt included' in render(report)


def test_failed_images_are_misses_and_have_no_tokens(small_run):
    images = small_run.read_images()
    rows = [row(images[0], error='truncated JPEG'), *(row(image, .9) for image in images[1:])]
    write_rows(small_run, 'ours', rows)
    point = score(small_run)['sweep']['points'][2]
    assert point['answers']['recall']['value'] == .75
    assert point['tokens'] == 900 - PROMPT


def test_other_runs_are_no_sweeps(finished_run):
    assert score(finished_run)['sweep'] is None
    assert 'Image tokens' not in write_report(finished_run).read_text(encoding='utf-8')
    assert not (finished_run.path / 'sweep.png').exists()


def test_reports_of_before_still_render(finished_run):
    report = score(finished_run)
    del report['sweep']
    for variant in report['variants']:
        del variant['settings']
    assert '## Variants' in render(report)


def test_picture_of_a_whole_sweep(empty_run):
    images = labelled_images()
    caps = (12, 6, 3, 2, 1)
    names = [f'stock-{cap}' for cap in caps] + ['native', 'native-1.5', 'budget-128']
    folder = empty_run(images, names)
    start(folder, {name: CPU if name.startswith('stock') else ALL for name in names},
          {f'stock-{cap}': {'max_dynamic_patch': cap} for cap in caps})
    for number, (name, tiles) in enumerate(zip(names, (13, 7, 4, 3, 1, 4, 3, 2))):
        answer_all(folder, name, images, seed=number, seconds_apart=.1 * tiles + .05)
        with_tiles(folder, name, [tiles] * 100)
    report = score(folder)
    write_report(folder)
    assert (folder.path / 'sweep.png').stat().st_size > 20_000
    figure = sweep_figure(report)
    figure.savefig(folder.path / 'picture.png', dpi=plots.DPI)
    drawn = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert drawn == set(names)
    within = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert within.x0 >= 0 and within.y0 >= 0 and within.x1 <= width and within.y1 <= height


def test_interval_holds_the_difference_and_shrinks_with_images():
    truth = np.arange(400) % 2 == 0
    called = np.stack([truth, truth & (np.arange(400) % 8 != 0), np.zeros(400, bool)])
    few, many = (resample(np.tile(truth, times), np.tile(called, times)) for times in (1, 16))
    lost = difference(few.recall[:, 0], few.recall[:, 1])
    assert lost.value == pytest.approx(-25)
    assert lost.low < lost.value < lost.high
    # sqrt(.25 * .75 / 200) is a standard error of 3.06 points
    assert lost.high - lost.low == pytest.approx(2 * 1.96 * 3.06, rel=.1)
    more = difference(many.recall[:, 0], many.recall[:, 1])
    assert more.high - more.low == pytest.approx((lost.high - lost.low) / 4, rel=.1)
    # a variant that calls nothing positive has no precision
    assert difference(few.precision[:, 0], few.precision[:, 2]) is None


def test_tokens_of_a_tile(tmp_path):
    assert tile_tokens(demo_run.DEMO / 'model') == 64
    for config in ({'model_type': 'llava'}, {'model_type': 'internvl_chat'},
                   {'model_type': 'internvl_chat', 'downsample_ratio': .5}):
        (tmp_path / 'config.json').write_text(json.dumps(config), encoding='utf-8')
        assert tile_tokens(tmp_path) is None


@pytest.mark.parametrize('has_gpu, patches', [(True, 'none'), (False, 'cpu')])
def test_the_ready_made_variants(has_gpu, patches):
    text = sweep_run.ready_made(str(demo_run.DEMO / 'model'), has_gpu)
    variants = {variant.name: variant for variant in parse_variants(text, has_gpu)}
    assert [dict(variants[f'stock-{cap}'].settings) for cap in (12, 6, 3, 2, 1)] == [
        {'max_dynamic_patch': cap} for cap in (12, 6, 3, 2, 1)]
    assert dict(variants['stock-3'].env) == {'LMDEPLOY_EXT_PATCHES': patches}
    assert dict(variants['shrink-1.5'].env) == {'LMDEPLOY_EXT_PATCHES': 'all',
                                                'LMDEPLOY_EXT_TILES': 'native',
                                                'LMDEPLOY_EXT_MAX_SHRINK': '1.5'}
    assert dict(variants['budget-128'].env)['LMDEPLOY_EXT_TILES'] == 'budget:128'
    assert dict(variants['same-tiles'].env)['LMDEPLOY_EXT_TILES'] == 'stock'


def test_sweep_renders_the_demo_set_and_runs_every_variant(tmp_path, monkeypatch, fake_worker,
                                                           capsys):
    asked = []

    def render_set(folder, counts, seed):
        asked.append((counts, seed))
        manifest = tmp_path / 'manifest.jsonl'
        with open(manifest, 'w', encoding='utf-8') as file:
            for split, count in counts.items():
                for number in range(count):
                    (tmp_path / f'{split}-{number}.jpg').write_bytes(b'jpeg')
                    line = {'id': f'{split}-{number}', 'image': f'{split}-{number}.jpg',
                            'label': '是否'[number % 2], 'split': split}
                    file.write(json.dumps(line) + '\n')
        return manifest

    monkeypatch.setattr(sweep_run, 'render_set', render_set)
    out = tmp_path / 'run'
    command = ['sweep', '--images', '12', '--seed', '3', '--out', str(out), '--quiet', '--device',
               'cpu']
    assert main(command) == 0
    assert asked == [({'test': 12, 'calibration': 6}, 3)]
    folder = RunFolder(out)
    assert len(folder.read_report()['variants']) == 12
    assert own_settings(folder.read_run(), 'stock-3').max_dynamic_patch == 3
    assert own_settings(folder.read_run(), 'native').max_dynamic_patch is None
    # what is in the folder is of other own settings
    variants = 'stock-12:LMDEPLOY_EXT_PATCHES=cpu:max_dynamic_patch=11'
    capsys.readouterr()
    assert main([*command, '--variants', variants]) == 2
    assert 'another run (variants differ)' in capsys.readouterr().err


@pytest.mark.parametrize('arguments, message', [
    (['--manifest', 'x.jsonl', '--images', '5'], 'with --manifest use --limit'),
    (['--manifest', 'x.jsonl', '--seed', '5'], 'with --manifest use --limit'),
    (['--images', '1'], '--images 1 are too few'),
    (['--model', 'nowhere'], 'nowhere is no model folder'),
])
def test_wrong_arguments_of_sweep(arguments, message, tmp_path, capsys):
    assert main(['sweep', '--out', str(tmp_path / 'run'), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_record_of_a_sweep(small_run, tmp_path, capsys):
    score(small_run)
    file = tmp_path / 'record.json'
    assert main(['report', str(small_run.path), '--record', str(file)]) == 0
    record = json.loads(file.read_text(encoding='utf-8'))
    assert [row['name'] for row in record['rows']] == ['stock-4', 'stock-1', 'ours']
    assert record['commit'] == small_run.read_report()['provenance']['commit']
    assert record['targets'] == [{'name': 'ours: recall against stock at equal tokens, points',
                                  'want': '>= 0', 'got': 8.333, 'met': True}]


def test_a_record_that_cannot_be_written_is_told_by_name(small_run, tmp_path, capsys):
    score(small_run)
    assert main(['report', str(small_run.path), '--record', str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f'{tmp_path} cannot be written' in error and 'name another file' in error


def test_what_native_may_lose():
    def point(name, recall, precision, fewer, equal):
        return {'name': name, 'fewer': fewer, 'between': equal and ['stock-6', 'stock-2', .5],
                'answers': {'recall_points': {'value': recall}, 'precision_points': {
                    'value': precision}, 'equal_tokens_points': equal}}

    found = targets({'points': [point('stock-12', 0, 0, 1, None),
                                point('native', -1, -1.1, 2.49, {'value': -1e-3}),
                                point('others', -9, -9, 9, None)]})
    assert [(target['got'], target['met']) for target in found] == [
        (-1, True), (-1.1, False), (2.49, False), (-.001, False)]


def test_other_runs_have_no_record(empty_run, tmp_path, capsys):
    images = labelled_images(test=8, calibration=0)
    folder = empty_run(images, ['stock'])
    write_rows(folder, 'stock', map(row, images, [.9] * 8))
    score(folder)
    file = tmp_path / 'record.json'
    assert main(['report', str(folder.path), '--record', str(file)]) == 2
    assert 'is no sweep' in capsys.readouterr().err and not file.exists()
