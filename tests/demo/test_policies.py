"""The comparison of tile settings on the demo model."""
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from lmdeploy_ext.eval.demo import policies
from lmdeploy_ext.eval.demo.check import MODEL
from lmdeploy_ext.eval.demo.picture import draw
from lmdeploy_ext.eval.demo.policy_settings import native_settings, stock_settings, tilings
from lmdeploy_ext.eval.demo.policy_table import LEAST, markdown, setting_figures
from lmdeploy_ext.eval.demo.reference import Reference, from_bytes
from lmdeploy_ext.vl.tile_policy import TileModel


@pytest.fixture(scope='module')
def pictures():
    """The first small pictures, of several sizes."""
    drawn = (draw('train', 0, index) for index in range(100))
    return [next(drawn) for _ in range(4)]


def test_stock_is_answered_as_by_upstreams_own_code(pictures):
    torch.set_num_threads(2)
    reference = Reference.load(MODEL)
    settings = stock_settings([1, 12])
    answers = policies.answer(reference, settings, iter(pictures), 'train', 16, 2)
    assert [row['id'] for row in answers.rows] == [drawn.id for drawn in pictures]
    for found, cap in zip(answers.probabilities, (12, 1)):
        expected = reference.probabilities(pictures, lambda drawn: from_bytes(drawn.jpeg), cap)
        # fp32 in batches of another size: other orders of summation
        assert found == pytest.approx([probability for _, probability in expected], abs=1e-4)
    assert set(answers.tiles[1]) == {1} and answers.tiles[0].min() >= 3


def test_settings_that_cut_alike_share_their_tiles():
    image = np.random.default_rng(0).integers(0, 256, (320, 440, 3), np.uint8)
    settings = stock_settings([12]) + native_settings(fits=['pad', 'crop', 'pad-corner'])
    cut = tilings(image, settings, TileModel())
    of = dict(zip((setting.name for setting in settings), cut.of_setting))
    # it fits into a tile: in the middle, or in the corner, whatever else is set
    assert len(cut.tiles) == 4
    middle, corner = (cut.tiles[of[f'native 1, {fit}, no thumbnail']]
                      for fit in ('pad', 'pad-corner'))
    assert (corner[0, :320, :440] == image).all()
    assert (middle[0, 64:384, 4:444] == image).all()
    assert of['stock 12'] != of['stock 12, our resize']


def test_figures_by_hand():
    truth = np.array([True, True, False, False])
    probabilities = np.array([[.9, .8, .1, .2], [.9, .4, .6, .5], [1, 1, 0, 0]])
    tiles = np.array([[12, 12, 6, 6], [3, 3, 3, 3], [1, 1, 1, 1]])
    first, second, third = setting_figures(['a', 'b', 'c'], truth, tiles, probabilities)
    assert (first.recall.value, first.precision.value, first.accuracy.value) == (1, 1, 1)
    assert (second.recall.value, second.precision.value, second.accuracy.value) == (.5, 1 / 3, .25)
    assert (first.tiles, second.tiles, second.fewer) == (9, 3, 3)
    assert first.log_loss.value == pytest.approx(-(np.log(.9) * 2 + np.log(.8) * 2) / 4)
    more = -np.log([1, .4 / .8, .4 / .9, .5 / .8])
    assert second.log_loss_more.value == pytest.approx(more.mean())
    assert second.log_loss_more.error == pytest.approx(more.std(ddof=1) / 2)
    # certain answers do not make the loss of others endless
    assert third.log_loss.value == pytest.approx(LEAST, rel=.01)


def test_without_lmdeploy_it_writes_the_record_and_the_table(tmp_path):
    code = ('import sys\n'
            'sys.modules["lmdeploy"] = None  # importing it is an error\n'
            'from lmdeploy_ext.eval.demo.policies import main\n'
            'if __name__ == "__main__":\n'
            '    sys.exit(main(sys.argv[1:]))\n')
    files = tmp_path / 'record.json', tmp_path / 'table.md'
    arguments = [
        '--count', '2', '--jobs', '1', '--stock', '1', '3', '--max-shrink', '1.1', '1.5', '--fit',
        'pad', 'stretch', '--thumbnail-from', '3', '--json', files[0], '--markdown', files[1]
    ]
    done = subprocess.run([sys.executable, '-c', code, *map(str, arguments)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(files[0].read_text(encoding='utf-8'))
    assert [row['name'] for row in record['rows']] == [
        'stock 3', 'stock 1', 'stock 3, our resize',
        'native 1.1, pad, thumbnail from 3', 'native 1.5, pad, thumbnail from 3',
        'native 1.1, stretch, thumbnail from 3', 'native 1.5, stretch, thumbnail from 3'
    ]
    assert record['rows'][3]['setting']['policy']['max_shrink'] == 1.1
    assert (record['split'], record['count'], record['seed']) == ('calibration', 2, 0)
    assert len(record['pictures']) == 2 and len(record['pictures'][0]['probabilities']) == 7
    assert record['weights_sha256'] and record['machine']['cpu'] and record['versions']['torch']
    table = files[1].read_text(encoding='utf-8')
    assert table == markdown(record)
    for part in ('| stock 3 | ', '| native 1.5, stretch, thumbnail from 3 | ', '2 pictures of the '
                 'calibration split', 'more than stock 3', ' ± '):
        assert part in table


@pytest.mark.parametrize('arguments, message', [
    (['--count', '0'], 'must be at least 1'),
    (['--batch-tiles', '0'], 'must be at least 1'),
    (['--model', 'nowhere'], 'has no config.json; give the folder of a checkpoint'),
    (['--max-shrink', '0.9'], 'max_shrink is 0.9'),
    (['--thumbnail-from', '1'], 'give at least 2'),
])
def test_wrong_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        policies.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_a_gpu_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        policies.main(['--device', 'cuda'])
    assert 'torch finds no GPU; use --device cpu' in capsys.readouterr().err
