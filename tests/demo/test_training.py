"""The trainer's parts agree with upstream and with the reference model."""
import copy

import numpy as np
import pytest
import torch
from lmdeploy.vl.model.internvl import dynamic_preprocess
from PIL import Image

from lmdeploy_ext.eval.demo import questions
from lmdeploy_ext.eval.demo.batch import Batcher, class_shares, mark_places
from lmdeploy_ext.eval.demo.check import MODEL
from lmdeploy_ext.eval.demo.objective import Objective, extract_feature, fast_attention
from lmdeploy_ext.eval.demo.optimizer import Optimizer, Rates, orthogonal
from lmdeploy_ext.eval.demo.picture import Mark, draw
from lmdeploy_ext.eval.demo.recipe import BATCH, FREE_SHARE, PATCH_SHARES, Draw, shares
from lmdeploy_ext.eval.demo.reference import Reference, upstream_tiles
from lmdeploy_ext.eval.demo.replica import Replica
from lmdeploy_ext.eval.demo.stream import Album, Chunk, Truth
from lmdeploy_ext.eval.demo.tiles import cut_tiles, free_cuts, patches, stock_cut, stock_grid


@pytest.fixture(scope='module')
def reference():
    torch.set_num_threads(1)
    return Reference.load(MODEL)


def chunk_of(drawn) -> Chunk:
    return Chunk(torch.from_numpy(drawn.pixels().copy())[None],
                 torch.from_numpy(drawn.classes)[None],
                 [Truth(drawn.beds, drawn.bunks, drawn.marks)])


def small_picture():
    """A small landscape picture, which makes one tile with max_dynamic_patch 1."""
    pictures = (draw('train', 0, index) for index in range(100))
    return next(drawn for drawn in pictures if drawn.width == 480)


def stock_pixels(pixels, max_num):
    """Stock tiles of one picture."""
    height, width = pixels.shape[:2]
    return cut_tiles(torch.from_numpy(pixels)[None], stock_cut(width, height, max_num))[0]


@pytest.mark.parametrize('max_num', [1, 2, 5, 6, 12])
def test_grid_is_upstreams(max_num):
    for width in range(64, 1500, 109):
        for height in range(48, 1500, 97):
            image = Image.new('L', (width, height))
            expected = len(dynamic_preprocess(image, max_num=max_num, image_size=28,
                                              use_thumbnail=True))
            # upstream's rule depends on the tile's area: ask for it in units of the tile
            scale = 448 / 28
            assert stock_cut(width * scale, height * scale, max_num).tiles == expected


@pytest.mark.parametrize('max_num', [1, 12])
def test_tiles_are_upstreams_but_for_rounding(max_num):
    pixels = small_picture().pixels().copy()
    ours = stock_pixels(pixels, max_num)
    theirs = upstream_tiles(Image.fromarray(pixels), max_num)
    assert ours.shape == theirs.shape
    # Pillow rounds to whole grey levels between the two axes: 1 / (255 * 0.224) = 0.018 a level
    assert (ours - theirs).abs().max() < 0.08
    assert (ours - theirs).abs().mean() < 0.006


def test_features_are_the_references(reference):
    tiles = stock_pixels(small_picture().pixels().copy(), 1)
    model = copy.deepcopy(reference.model)
    fast_attention(model)
    with torch.no_grad():
        ours = extract_feature(model, patches(tiles, 28))
        theirs = reference.model.extract_feature(tiles)
    assert torch.allclose(ours, theirs, atol=1e-4)  # fp32, other order of summation


def test_training_sees_the_answer_that_the_reference_gives(reference):
    drawn = small_picture()
    group = chunk_of(drawn), stock_cut(drawn.width, drawn.height, 1)
    batch = Batcher(reference.tokenizer, torch.float32)([group], np.random.default_rng(0))
    with torch.no_grad():
        hits = Objective(copy.deepcopy(reference.model), reference.tokenizer)(batch)['hits']
    tiles = stock_pixels(drawn.pixels().copy(), 1)
    says_yes = reference.probability(tiles) >= 0.5
    assert bool(hits[0]) == (says_yes == questions.is_positive(drawn.beds, drawn.bunks))


def test_losses_fall(reference):
    drawn = small_picture()
    group = chunk_of(drawn), stock_cut(drawn.width, drawn.height, 1)
    batch = Batcher(reference.tokenizer, torch.float32)([group], np.random.default_rng(0))
    master = Objective(copy.deepcopy(reference.model), reference.tokenizer)
    averaged = copy.deepcopy(master).requires_grad_(False)
    replica = Replica(copy.deepcopy(master))
    optimizer = Optimizer(master, averaged, Rates(), torch.float32)
    optimizer.rate.fill_(0.3)
    losses = []
    for _ in range(4):
        with torch.no_grad():
            replica.weights.copy_(torch.cat([w.flatten() for w in master.parameters()]))
        found = replica.gradient(batch)
        losses.append(float(found['mark'] + found['dense']))
        optimizer.step(replica.grads)
    assert losses[-1] < 0.9 * losses[0]
    before, now = next(averaged.parameters()), next(master.parameters())
    assert not torch.equal(before, now)


def test_groups_with_different_numbers_of_tiles_are_refused(reference):
    drawn = small_picture()
    groups = [(chunk_of(drawn), stock_cut(drawn.width, drawn.height, most)) for most in (1, 6)]
    with pytest.raises(ValueError, match=r'pictures of \[1, 7\] tiles; all must make the same'):
        Batcher(reference.tokenizer, torch.float32)(groups, np.random.default_rng(0))


@pytest.mark.parametrize('shape', [(2, 192, 64), (3, 64, 128), (1, 64, 192)])
def test_muons_update_is_nearly_orthogonal(shape):
    update = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    assert update.shape == shape
    values = torch.linalg.svdvals(update)
    assert values.min() > 0.3 and values.max() < 1.3  # what five steps reach, by the method


def test_batches_keep_the_shares_of_sizes_and_cuts():
    rng, draws = np.random.default_rng(0), Draw()
    total, portrait, whole, free = 0, 0, 0, 0
    for _ in range(3000):
        tiles = draws.tiles(rng)
        cuts = draws.cuts(rng, tiles)
        assert len(cuts) * 8 == BATCH[tiles]
        for (height, width), how in cuts:
            assert how.tiles == tiles
            total += 1
            portrait += height > width
            whole += how == stock_cut(width, height, 12)
            free += how not in {stock_cut(width, height, most) for most in range(1, 13)}
    expected = sum(share for (height, width), share in shares().items() if height > width)
    assert abs(portrait / total - expected) < 0.03
    assert whole / total > (1 - FREE_SHARE) * PATCH_SHARES[-1]
    assert 0.7 * FREE_SHARE < free / total <= FREE_SHARE + 0.02  # some free cuts are stock's too


def test_free_cuts_lose_and_repeat_nothing():
    for width, height in ((480, 320), (464, 612), (960, 720), (896, 1344)):
        cuts = free_cuts(width, height)
        assert len(set(cuts)) == len(cuts) > 3
        for how in cuts:
            place = how.place
            assert 0 <= place.left and place.left + place.width <= how.columns * 448
            assert 0 <= place.top and place.top + place.height <= how.rows * 448
            assert place.width >= 0.44 * width and place.height >= 0.44 * height


def test_marks_and_classes_lie_where_the_picture_shows_them():
    pixels = np.full((320, 480, 3), 90, np.uint8)
    pixels[200:280, 300:400] = 250
    classes = np.zeros((40, 60), np.uint8)
    classes[25:35, 37:50] = 3
    truth = Truth(1, 0, (Mark('single', 350 / 480, 240 / 320), ))
    chunk = Chunk(torch.from_numpy(pixels)[None], torch.from_numpy(classes)[None], [truth])
    for how in free_cuts(480, 320) + (stock_cut(480, 320, 12), ):
        bright = cut_tiles(chunk.pixels, how)[0].float().mean(1)  # [tiles, 448, 448]
        cells = torch.nn.functional.avg_pool2d(bright.unsqueeze(1), 56).flatten()
        shares = class_shares(chunk, how)[:, 3]
        rows = [row for row, kind in mark_places(truth, how) if kind == 0]
        assert len(rows) == 1 + (how.thumbnail is not None)
        for row in rows:  # in the brightest cell of its tile or next to it, and classes agree
            tile = slice(row // 64 * 64, row // 64 * 64 + 64)
            assert shares[row] > 0.3 and cells[row] > cells[tile].max() - 1.2
        assert np.corrcoef(shares.numpy(), cells.numpy())[0, 1] > 0.6  # grey margins are dark


def test_an_album_keeps_the_newest_pictures():
    album = Album(1, {(16, 24): 1.0}, torch.device('cpu'))  # eight places, the least there are
    for value in range(12):
        album.add(Chunk(torch.full((1, 16, 24, 3), value, dtype=torch.uint8),
                        torch.zeros(1, 2, 3, dtype=torch.uint8), [Truth(value, 0, ())]))
    chunk = album.sample(np.random.default_rng(0), (16, 24), 64)
    found = {(int(pixels[0, 0, 0]), truth.beds)
             for pixels, truth in zip(chunk.pixels, chunk.truths)}
    assert found == {(value, value) for value in range(4, 12)}
    assert album.seen == 12 and album.complete()
    assert stock_grid(1344, 896, 12) == (3, 2)
