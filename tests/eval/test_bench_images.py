"""`make bench-images`: what its result holds, not how fast this machine is."""
import json
import math
import time

import numpy as np
import pytest
from PIL import Image

from lmdeploy_ext.eval.bench import image_table, images, photographs
from lmdeploy_ext.eval.bench.fidelity import psnr
from lmdeploy_ext.eval.bench.folder import folder_rows
from lmdeploy_ext.eval.bench.sample import Sample
from lmdeploy_ext.eval.bench.scope import NATIVE, OURS, SAME_TILES, STOCK, UPSTREAM_PIXELS
from lmdeploy_ext.eval.bench.speed import interleaved
from lmdeploy_ext.eval.bench.targets import targets
from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.eval.provenance import check_result

WAYS = {STOCK, *OURS}
EXIF_ORIENTATION = 274


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    """Two photographs, one of them stored lying, a text file, and half a photograph."""
    folder = tmp_path_factory.mktemp('private') / 'holiday'
    (folder / 'more').mkdir(parents=True)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    picture = Image.fromarray(photographs.scene(500, 375))
    picture.save(folder / 'upright.jpg', quality=90)
    picture.save(folder / 'more' / 'lying.jpg', quality=90, exif=exif)
    (folder / 'notes.txt').write_text('where we were', encoding='utf-8')
    whole = (folder / 'upright.jpg').read_bytes()
    (folder / 'cut.jpg').write_bytes(whole[:len(whole) // 2])
    return folder


@pytest.fixture(scope='module')
def result(photos, tmp_path_factory):
    """The result of a quick run, its files beside it."""
    out = tmp_path_factory.mktemp('bench') / 'images.json'
    assert images.main(['--quick', '--photos', str(photos), '--out', str(out)]) == 0
    return json.loads(out.read_text(encoding='utf-8')), out


def rows_of(result, part):
    return [row for row in result[0]['rows'] if row['part'] == part]


def test_every_size_is_measured_by_stock_and_by_ours(result):
    check_result(result[0])
    rows = rows_of(result, 'size')
    assert {(row['size'], row['format']) for row in rows} == {
        (size, form) for size in ('64x48', '612x464') for form in ('JPEG', 'PNG')}
    for row in rows:
        assert row['total_ms'] > 0 and row['decode_ms'] > 0 and row['cut_ms'] > 0
        low, high = row['total_quartiles_ms']
        assert low <= row['total_ms'] <= high
        if row['way'] == STOCK:
            assert row['ratio'] == 1
    assert {row['way'] for row in rows} == WAYS


def test_tiles_and_tokens_are_those_of_each_way(result):
    for row in rows_of(result, 'size'):
        assert row['tokens'] == 256 * row['tiles']
        if row['way'] != NATIVE:
            assert row['tiles'] == 13  # any 4:3 image
    assert all(row['tokens'] <= 512 for row in rows_of(result, 'size') if row['way'] == NATIVE)


def test_upstream_pixels_are_identical_and_the_same_tiles_near(result):
    for row in rows_of(result, 'size'):
        if row['way'] in (STOCK, UPSTREAM_PIXELS):
            assert row['identical'] and row['psnr_db'] is None
        elif row['way'] == SAME_TILES:
            assert not row['identical'] and row['psnr_db'] > 35
        else:
            assert row['psnr_db'] is None  # other tiles cannot be compared


def test_photographs_of_a_folder_are_summed_up(result):
    rows = {row['way']: row for row in rows_of(result, 'photographs')
            if row['folder'] == 'holiday'}
    assert set(rows) == WAYS
    for row in rows.values():
        assert (row['images'], row['turned']) == (2, 1)
        assert (row['not_images'], row['unreadable']) == (1, 1)
    # Only upright pixels are near: the lying file was compared with upstream's upright tiles.
    assert rows[SAME_TILES]['compared'] == 2
    assert rows[SAME_TILES]['psnr_least_db'] > 35
    assert rows[NATIVE]['mean_tokens'] < rows[STOCK]['mean_tokens'] == 13 * 256
    assert {row['folder'] for row in rows_of(result, 'photographs')} == {'scikit-image', 'holiday'}


def test_cores_and_memory_are_measured_by_stock_and_by_ours(result):
    for part in ('cores', 'memory'):
        assert {row['way'] for row in rows_of(result, part)} == WAYS
    for row in rows_of(result, 'memory'):
        assert row['multiple'] == pytest.approx(row['peak_mib'] / row['decoded_mib'], rel=0.05)
    stock = next(row for row in rows_of(result, 'memory') if row['way'] == STOCK)
    assert stock['peak_mib'] > 13 * 448 * 448 * 3 * 4 / 2**20  # the float tensor alone


def test_targets_name_what_was_measured(result):
    names = [target['name'] for target in result[0]['targets']]
    assert len(names) == 5  # the 12-megapixel image is not among the quick ones
    assert any('holiday' in name for name in names)
    assert not any('scikit-image' in name for name in names)


def test_the_folder_is_recorded_by_its_name_only(result, photos):
    content = result[1].read_text(encoding='utf-8')
    assert str(photos.parent) not in content
    assert result[0]['command'] == [
        'python', '-m', 'lmdeploy_ext.eval.bench.images', '--photos', 'holiday', '--quick']


def test_table_and_picture_lie_beside_the_result(result):
    text = result[1].with_suffix('.md').read_text(encoding='utf-8')
    for part in ('612x464 JPEG', "identical to stock's in 4 of 4 files", '3,328 → 512',
                 '## Peak memory', 'holiday'):
        assert part in text
    with Image.open(result[1].with_suffix('.png')) as picture:
        assert picture.width > 1000


@pytest.mark.parametrize('make, message', [
    (lambda folder: None, 'no folder of photographs'),
    (lambda folder: folder.write_text('a file'), 'no folder of photographs'),
    (lambda folder: folder.mkdir(), 'no file in the folder'),
])
def test_a_folder_without_files_is_an_error_at_once(make, message, tmp_path, capsys):
    make(tmp_path / 'photos')
    assert images.main(['--photos', str(tmp_path / 'photos'), '--quick']) == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and message in error and error.count('\n') == 1


class FakeWay:
    """A way that takes no time and cannot read every file."""

    def __init__(self, name, log=None):
        self.name = name
        self._log = [] if log is None else log

    def prepare(self, path, keep=False):
        self._log.append(self.name)
        return Sample(0.002, 0.001, 0.0, 1, np.zeros((1, 4, 4, 3), np.uint8) if keep else None)


def test_a_folder_without_an_image_is_an_error(tmp_path):
    (tmp_path / 'page.jpg').write_text('<html></html>', encoding='utf-8')
    with pytest.raises(EvalError, match='none of the 1 files in the folder of photographs mine'):
        folder_rows([FakeWay(STOCK), FakeWay(SAME_TILES)], [tmp_path / 'page.jpg'], 'mine', 1)


def test_an_error_of_the_measuring_process_is_told_in_one_line(tmp_path, capsys):
    (tmp_path / 'page.jpg').write_text('<html></html>', encoding='utf-8')
    out = tmp_path / 'out.json'
    assert images.main(['--photos', str(tmp_path), '--quick', '--out', str(out)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith('error: none of the 1 files')
    assert not out.exists()


def test_ways_take_turns_and_the_first_call_of_a_turn_is_not_counted(tmp_path):
    log = []
    ways = [FakeWay(name, log) for name in 'abc']
    turns = interleaved(ways, tmp_path, seconds=0, least=2, most=5)
    a, b, c = ('a' * 13, 'b' * 13, 'c' * 13)
    assert ''.join(log) == a + b + c + b + c + a
    assert {name: len(own) for name, own in turns.samples.items()} == {'a': 24, 'b': 24, 'c': 24}
    assert len(interleaved(ways, tmp_path, seconds=60, least=2, most=5).samples['a']) == 60


class SleepingWay(FakeWay):
    """A way whose thread another process keeps from running."""

    def prepare(self, path, keep=False):
        time.sleep(0.005)
        return super().prepare(path, keep)


def test_a_busy_machine_is_told(tmp_path, result):
    turns = interleaved([SleepingWay('a')], tmp_path, seconds=0, least=2, most=2)
    assert turns.cpu_share < 0.5
    rows = [{**row, 'cpu_share': 0.6} for row in result[0]['rows']]
    told = 'other processes took 40% of the time'
    assert told in image_table.summary({**result[0], 'rows': rows})
    assert told in image_table.table({**result[0], 'rows': rows})
    quiet = [{**row, 'cpu_share': 0.99} for row in result[0]['rows']]
    assert 'busy' not in image_table.table({**result[0], 'rows': quiet})


def size_row(size, way, ratio):
    return {'part': 'size', 'size': size, 'format': 'JPEG', 'way': way, 'ratio': ratio}


ROWS = [
    size_row('612x464', SAME_TILES, 10.0),
    size_row('612x464', NATIVE, 19.9),
    size_row('4032x3024', NATIVE, 5.1),
    {'part': 'cores', 'way': STOCK, 'share_of_linear': 0.5},
    {'part': 'cores', 'way': NATIVE, 'share_of_linear': 0.95},
    {'part': 'cores', 'way': SAME_TILES, 'share_of_linear': 0.84},
    {'part': 'memory', 'way': STOCK, 'multiple': 9.0},
    {'part': 'memory', 'way': NATIVE, 'multiple': 3.9},
    {'part': 'memory', 'way': UPSTREAM_PIXELS, 'multiple': 4.0},
    {'part': 'photographs', 'way': SAME_TILES, 'folder': 'mine', 'psnr_median_db': 44.2},
]


def test_targets_are_met_from_their_figure_on_and_memory_below_it():
    assert [(target['want'], target['got'], target['met']) for target in targets(ROWS)] == [
        (10, 10.0, True), (20, 19.9, False), (5, 5.1, True), (0.85, 0.84, False),
        (4, 4.0, False), (44, 44.2, True)]


def test_what_was_not_measured_is_no_target():
    assert [target['want'] for target in targets(ROWS[:1])] == [10]
    assert targets([]) == []


def test_psnr_of_one_grey_level_everywhere():
    pixels = np.full((2, 4, 4, 3), 100, np.uint8)
    assert psnr(pixels + 1, pixels) == pytest.approx(20 * math.log10(255))
    assert psnr(pixels, pixels) == math.inf
    with pytest.raises(ValueError, match='expected the same tiles'):
        psnr(pixels[:1], pixels)


@pytest.mark.parametrize('width, height', [(64, 48), (1, 300), (1920, 1080)])
def test_a_scene_has_the_asked_size(width, height):
    assert photographs.scene(width, height).shape == (height, width, 3)


def test_without_scikit_image_the_message_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(photographs.importlib.util, 'find_spec', lambda name: None)
    assert images.main(['--quick']) == 2
    assert 'scikit-image' in capsys.readouterr().err


def test_a_process_with_patches_is_not_taken_for_stock(monkeypatch):
    from lmdeploy_ext.eval.bench import stock
    monkeypatch.setattr(stock, 'status', lambda: [
        {'name': 'some_seam', 'kind': 'seam', 'state': 'applied'},
        {'name': 'load_image_strict', 'kind': 'patch', 'state': 'ready'}])
    with pytest.raises(EvalError, match=r'\(load_image_strict\).*LMDEPLOY_EXT_PATCHES=none'):
        stock.Stock()
