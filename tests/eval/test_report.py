"""From stored rows to report.json, report.md and the pictures, without a model."""
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from lmdeploy_ext.classify.errors import ClassifyError
from lmdeploy_ext.eval import plots
from lmdeploy_ext.eval.compare import qpm_ratio, score
from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.eval.report import render, sentences, summary, write_report
from lmdeploy_ext.eval.run_folder import RunFolder

from .conftest import answer_all, labelled_images, row, write_rows

PICTURES = ('overview', 'precision_recall', 'latency')


def by_name(report):
    """The variants of a report."""
    return {variant['name']: variant for variant in report['variants']}


def test_figures_are_those_of_the_rows(empty_run):
    images = labelled_images(test=4, calibration=0)
    folder = empty_run(images)
    for name, scores in (('stock', (.9, .1, .2, .3)), ('patched', (.9, .1, .8, .7))):
        write_rows(folder, name, map(row, images, scores))
    report = score(folder)
    recalls = [
        variant['answers']['labels'][0]['recall']['value'] for variant in report['variants']
    ]
    assert recalls == [.5, 1]
    comparison, = report['comparisons']
    assert (comparison['first'], comparison['second']) == ('stock', 'patched')
    assert comparison['recall_points'] == 50
    assert comparison['all_images']['changed_ids'] == ['test/2.jpg', 'test/3.jpg']
    assert comparison['positive_images']['only_second_right'] == 1
    assert comparison['qpm_ratio'] is None


def test_threshold_comes_from_calibration_images_alone(empty_run):
    images = labelled_images(test=4, calibration=4)
    folder = empty_run(images, ['stock'], target_recall=1.)
    test, calibration = (.30, .20, .25, .35), (.8, .1, .6, .2)
    write_rows(folder, 'stock', map(row, images, test + calibration))
    variant = score(folder)['variants'][0]
    # the lowest positive calibration score, though no test image reaches it
    assert variant['threshold']['value'] == .6
    assert variant['threshold']['calibration']['recall']['value'] == 1
    assert variant['at_threshold']['recall']['value'] == 0


def test_without_calibration_images_the_threshold_is_a_half(empty_run):
    images = labelled_images(test=4, calibration=0)
    folder = empty_run(images, ['stock'])
    write_rows(folder, 'stock', map(row, images, (.9, .1, .4, .2)))
    report = score(folder)
    assert report['variants'][0]['threshold'] == {
        'value': .5,
        'target': None,
        'note': 'no calibration images answered: threshold 0.5',
        'calibration': None
    }
    assert 'no calibration images answered: threshold 0.5' in render(report)


def test_an_unreachable_target_is_said(empty_run):
    images = labelled_images(test=2, calibration=4)
    folder = empty_run(images, ['stock'])
    rows = [row(image, .9) for image in images[:-2]]
    rows += [row(image, error='truncated JPEG') for image in images[-2:]]
    write_rows(folder, 'stock', rows)
    threshold = score(folder)['variants'][0]['threshold']
    assert threshold['value'] == .5
    assert 'no threshold reaches a recall of 0.95' in threshold['note']


def test_errors_and_off_label_answers_are_counted(empty_run):
    images = labelled_images(test=4, calibration=0)
    folder = empty_run(images, ['stock'])
    rows = list(map(row, images, (.9, .1, .9, .1)))
    rows[1] = row(images[1], error='cannot identify image file')
    rows[2]['text'] = '不知道'
    write_rows(folder, 'stock', rows)
    report = score(folder)
    variant = report['variants'][0]
    assert (variant['unanswered'], variant['off_label']) == (1, 1)
    assert variant['errors'] == [{'id': 'test/1.jpg', 'error': 'cannot identify image file'}]
    assert 'stock, test/1.jpg: cannot identify image file' in render(report)


def test_a_failed_variant_leaves_the_others_figures(finished_run):
    folder = finished_run
    failed = folder.variant('patched')
    failed.rows_file(1).unlink()
    failed.times_file(1).unlink()
    failed.error_file.write_text('out of memory (exit code 1)\n', encoding='utf-8')
    report = score(folder)
    assert by_name(report)['stock']['answers']['accuracy']['value'] > .8
    assert by_name(report)['patched']['images'] == 0
    assert report['comparisons'] == []
    assert 'patched ended early: out of memory (exit code 1)' in sentences(report)
    text = write_report(folder).read_text(encoding='utf-8')
    assert 'patched ended early: out of memory' in text
    assert '100 images have no row yet' in text


def test_an_interrupted_variant_is_compared_on_what_both_answered(finished_run):
    rows = finished_run.variant('patched').rows_file(1)
    lines = rows.read_text(encoding='utf-8').splitlines(keepends=True)
    # a header, 30 rows and half a row, as a killed process leaves them
    rows.write_text(''.join(lines[:31]) + lines[31][:40], encoding='utf-8')
    report = score(finished_run)
    assert by_name(report)['patched']['pending'] == 70
    assert report['comparisons'][0]['images'] == 30


def test_damaged_rows_are_named(finished_run):
    with open(finished_run.variant('patched').rows_file(1), 'a', encoding='utf-8') as file:
        file.write('{"id": "x"}\n')
    with pytest.raises(ClassifyError, match='rows-1.jsonl, line 102: not a row'):
        score(finished_run)


def test_more_variants_than_rows_is_no_error(empty_run):
    report = score(empty_run(labelled_images(4, 0)))
    assert [variant['images'] for variant in report['variants']] == [0, 0]
    assert summary(report).count('–') >= 8
    assert '## Variants' in render(report)


def test_rounds_give_a_ratio_with_its_range(empty_run):
    images = labelled_images()
    folder = empty_run(images, rounds=3)
    for number, pace in ((1, .5), (2, .25), (3, .4)):
        answer_all(folder, 'stock', images, number, seconds_apart=.5)
        answer_all(folder, 'patched', images, number, seconds_apart=pace)
    report = score(folder)
    ratio = report['comparisons'][0]['qpm_ratio']
    assert ratio['rounds'] == 3
    assert (ratio['low'], ratio['value'], ratio['high']) == pytest.approx((1, 1.25, 2), rel=.02)
    assert len(by_name(report)['patched']['round_qpm']) == 3
    assert by_name(report)['patched']['round_changes'] == 0
    assert '(1.00–2.00 over 3 rounds)' in render(report)


def test_ratio_by_hand():
    ratio = qpm_ratio([100, 120, None, 100], [200, 120, 300, 150])
    assert (ratio.value, ratio.low, ratio.high, ratio.rounds) == (1.5, 1, 2, 3)
    assert qpm_ratio([None], [100]) is None


def test_report_says_what_it_must(finished_run):
    score(finished_run)
    text = write_report(finished_run).read_text(encoding='utf-8')
    for part in ('overview.png', 'latency.png', 'precision_recall.png', 'McNemar',
                 '| tiles_native | speed |', 'off | applied', 'lmdeploy 0.6.0',
                 '`LMDEPLOY_EXT_PATCHES=cpu`', '| positive | 是 |', '| commit | '):
        assert part in text
    assert 'None' not in text.replace('not a git checkout', '')


def test_pictures_show_something(finished_run):
    score(finished_run)
    write_report(finished_run)
    for name in PICTURES:
        with Image.open(finished_run.path / f'{name}.png') as picture:
            pixels = np.asarray(picture.convert('RGB'))
        assert min(pixels.shape[:2]) >= 400, name
        colours, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
        assert len(colours) > 50, name
        assert counts.max() < .98 * counts.sum(), name
        # the colour of the second variant, drawn and not only named
        assert (pixels == (0x00, 0x72, 0xB2)).all(axis=2).sum() > 200, name


def test_long_names_and_many_variants_fit_into_the_pictures(empty_run):
    names = [f'{number}-a-name-that-somebody-typed-to-say-it-all-{number}' for number in range(6)]
    images = labelled_images()
    folder = empty_run(images, names)
    for name in names:
        answer_all(folder, name, images)
    report = score(folder)
    for name in PICTURES:
        figure = getattr(plots, name)(report)
        figure.savefig(folder.path / 'picture.png', dpi=plots.DPI)
        within = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert within.x0 >= 0 and within.y0 >= 0, name
        assert within.x1 <= width and within.y1 <= height, name


def test_scoring_again_gives_the_same_and_needs_no_torch(finished_run):
    first = score(finished_run)
    code = ('import sys\n'
            'from lmdeploy_ext.eval.__main__ import main\n'
            'assert main(["score", sys.argv[1]]) == 0\n'
            'assert main(["report", sys.argv[1]]) == 0\n'
            'heavy = {"torch", "lmdeploy", "transformers"} & set(sys.modules)\n'
            'assert not heavy, heavy\n')
    done = subprocess.run(
        [sys.executable, '-c', code, str(finished_run.path)],
        capture_output=True,
        text=True,
        check=False)
    assert done.returncode == 0, done.stderr
    assert 'patched against stock' in done.stdout
    second = finished_run.read_report()
    assert {**second, 'scored': None} == {**first, 'scored': None}


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(EvalError, match='holds no run.json'):
        score(RunFolder(tmp_path))
    with pytest.raises(EvalError, match='holds no report.json.*score'):
        write_report(RunFolder(tmp_path))


def test_report_is_json_without_nan(finished_run):
    score(finished_run)
    text = finished_run.report_file.read_text(encoding='utf-8')
    assert 'NaN' not in text
    json.loads(text, parse_constant=pytest.fail)
