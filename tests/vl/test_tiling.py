"""How many tiles an image gets, and where it stands on them."""
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmdeploy_ext.vl.image_errors import BadImageReference
from lmdeploy_ext.vl.tile_policy import FITS
from lmdeploy_ext.vl.tiling import TileModel, TilePolicy, plan, plan_request, requested_tiles

INTERNVL2 = TileModel()
NATIVE = TilePolicy()
STOCK = TilePolicy('stock')
SIDES = st.one_of(st.integers(1, 2000), st.integers(1, 20000))
FIT = st.sampled_from(FITS)
STRETCHED = ('auto', 'stretch')
SHRINK = st.sampled_from((1.0, 1.04, 1.1, 1.25, 1.5, 3.0))
THUMBNAIL_FROM = st.sampled_from((2, 3, 5, 99))
MOST = st.one_of(st.none(), st.integers(-1, 30))
MODELS = st.builds(TileModel,
                   side=st.sampled_from((112, 448)),
                   max_tiles=st.integers(1, 14),
                   thumbnail=st.booleans())
POLICIES = st.builds(TilePolicy, max_shrink=SHRINK, fit=FIT, thumbnail_from=THUMBNAIL_FROM)


def shrink(width, height, columns, rows, model):
    """How many pixels become one where the whole image is shown on this grid."""
    return max(width / (columns * model.side), height / (rows * model.side), 1)


def grids(limit):
    return [(columns, rows) for columns in range(1, limit + 1)
            for rows in range(1, limit // columns + 1)]


@pytest.mark.parametrize('size, tokens, stock_tokens', [
    ((480, 320), 512, 1792),
    ((612, 464), 512, 3328),
    ((640, 480), 1280, 3328),
    ((896, 1344), 1792, 1792),
])
def test_the_defaults_keep_the_bounds_that_users_are_promised(size, tokens, stock_tokens):
    assert plan(*size, NATIVE, INTERNVL2).tokens(INTERNVL2) <= tokens
    assert plan(*size, STOCK, INTERNVL2).tokens(INTERNVL2) == stock_tokens


@pytest.mark.parametrize('size, grid, tiles', [
    ((1, 1), (1, 1), 1),
    ((448, 448), (1, 1), 1),
    ((492, 492), (1, 1), 1),
    ((493, 493), (1, 1), 1),  # one tile more would be more than stock's
    ((640, 640), (2, 2), 5),
    ((10000, 1), (12, 1), 13),
    ((1, 10000), (1, 12), 13),
    ((4032, 3024), (4, 3), 13),
])
def test_native_takes_the_smallest_grid_that_shows_the_pixels(size, grid, tiles):
    native = plan(*size, NATIVE, INTERNVL2)
    assert (native.columns, native.rows) == grid
    assert native.tiles == tiles


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_native_never_makes_more_tiles_than_stock(width, height, policy, model, most):
    native = plan(width, height, policy, model, most)
    limit = model.max_tiles if most is None else min(most, model.max_tiles)
    assert 1 <= native.tiles <= plan(width, height, STOCK, model, limit).tiles
    assert native.columns * native.rows <= max(limit, 1)


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_the_shrink_bound_holds_wherever_a_grid_within_the_caps_meets_it(
        width, height, policy, model, most):
    native = plan(width, height, policy, model, most)
    limit = model.max_tiles if most is None else min(max(most, 1), model.max_tiles)
    stock = plan(width, height, STOCK, model, limit).tiles

    def tiles(columns, rows):
        return columns * rows + (model.thumbnail and columns * rows >= policy.thumbnail_from)

    allowed = [grid for grid in grids(limit) if tiles(*grid) <= stock]
    kept = [grid for grid in allowed if shrink(width, height, *grid, model) <= policy.max_shrink]
    chosen = shrink(width, height, native.columns, native.rows, model)
    if kept:
        assert chosen <= policy.max_shrink
        assert native.tiles == min(tiles(*grid) for grid in kept)
    else:
        assert chosen == min(shrink(width, height, *grid, model) for grid in allowed)


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_an_image_is_never_enlarged_and_keeps_its_aspect_ratio(width, height, policy, model, most):
    native = plan(width, height, policy, model, most)
    places = [(native.width, native.height)]
    if native.thumbnail:
        places.append((native.thumbnail_width, native.thumbnail_height))
    for shown in places:
        if policy.fit in ('pad', 'crop'):
            assert shown[0] <= width and shown[1] <= height
            # within a pixel: of the width that belongs to a height of half a pixel more or less
            low, high = ((max(shown[1] + half, 0) * width / height) for half in (-.5, .5))
            assert low - 1 <= shown[0] <= high + 1 or shown[1] == 1


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_the_image_stands_in_the_middle_of_its_canvas(width, height, policy, model, most):
    native = plan(width, height, policy, model, most)
    canvas = native.columns * model.side, native.rows * model.side
    for first, length, room in ((native.left, native.width, canvas[0]),
                                (native.top, native.height, canvas[1])):
        assert abs(first - (room - length - first)) <= 1
        if policy.fit not in ('crop', 'auto'):
            assert 0 <= first and first + length <= room
    if policy.fit == 'stretch':
        assert (native.width, native.height) == canvas
    if native.thumbnail:
        longest = max(native.thumbnail_width, native.thumbnail_height)
        assert longest == min(max(width, height), model.side) or policy.fit in STRETCHED
        assert native.thumbnail_width <= model.side and native.thumbnail_height <= model.side
    else:
        assert native.thumbnail_width == native.thumbnail_height == 0


@given(SIDES, SIDES, SHRINK, MOST)
def test_cropping_loses_no_more_than_shrinking_may(width, height, most_shrink, most):
    cropped = plan(width, height, TilePolicy(max_shrink=most_shrink, fit='crop'), INTERNVL2, most)
    assert cropped.width <= cropped.columns * 448 * most_shrink + .5
    assert cropped.height <= cropped.rows * 448 * most_shrink + .5


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_auto_stretches_but_for_the_middle_of_what_a_small_grid_would_squeeze(
        width, height, policy, model, most):
    auto, stretched = (plan(width, height, replace(policy, fit=fit), model, most)
                       for fit in STRETCHED)
    stock = plan(width, height, STOCK, model)
    content, canvas = (auto.width, auto.height), (auto.columns * model.side,
                                                  auto.rows * model.side)
    squeeze = max(width / canvas[0], 1) / max(height / canvas[1], 1)
    if squeeze < 1:
        content, canvas, squeeze = content[::-1], canvas[::-1], 1 / squeeze
    if auto == stretched:
        assert (max(auto.columns, auto.rows) > 3 or squeeze < 1.1001
                or auto.columns * auto.rows >= stock.columns * stock.rows)
        return
    assert replace(auto, width=stretched.width, height=stretched.height, left=0,
                   top=0) == stretched
    assert squeeze > 1.0999 and content[1] == canvas[1]
    # a third of one axis is left out at most, a quarter where no thumbnail shows it; and not more
    # than is needed to shrink both axes alike
    jut = min(squeeze, 3 / 2 if auto.thumbnail else 4 / 3)
    assert content[0] == pytest.approx(canvas[0] * jut, abs=.5)


@given(SIDES, st.floats(.4, 2.5))
@example(600, 522 / 600)  # stock, too, has one tile only
@example(1020, 885 / 1020)
@example(507, 871 / 507)
def test_by_default_everything_is_in_the_tiles(width, aspect):
    size = width, max(round(width * aspect), 1)
    assert plan(*size, NATIVE, INTERNVL2) == plan(*size, TilePolicy(fit='stretch'), INTERNVL2)


@pytest.mark.parametrize('tiles, size, grid, content', [
    (5, (1344, 896), (2, 2), (1344, 896)),  # 448 columns are in the thumbnail only
    (5, (896, 1344), (2, 2), (896, 1344)),
    (5, (1600, 900), (2, 2), (1344, 896)),
    (5, (960, 720), (2, 2), (896, 896)),  # the rows of 720 are enlarged, as ever
    (4, (2000, 800), (3, 1), (1344, 538)),
    (2, (1344, 896), (2, 1), (896, 597)),
    (1, (1344, 896), (1, 1), (597, 448)),
    (1, (480, 320), (1, 1), (448, 448)),
])
def test_what_auto_shows_on_few_tiles(tiles, size, grid, content):
    shown = plan(*size, TilePolicy('budget', tiles * 256), INTERNVL2)
    assert ((shown.columns, shown.rows), shown.tiles) == (grid, tiles)
    assert (shown.width, shown.height) == content


@given(SIDES, SIDES, POLICIES, MODELS)
def test_asking_for_fewer_tiles_never_gives_more(width, height, policy, model):
    counts = [plan(width, height, policy, model, most).tiles for most in range(16)]
    assert counts == sorted(counts)
    assert counts[-1] == plan(width, height, policy, model).tiles


@given(SIDES, SIDES, POLICIES, MODELS, MOST)
def test_a_transposed_image_gets_the_transposed_grid(width, height, policy, model, most):
    upright = plan(width, height, policy, model, most)
    lying = plan(height, width, policy, model, most)
    grids = {(upright.columns, upright.rows), (lying.rows, lying.columns)}
    if len(grids) > 1:  # a tie; or stock, which is not symmetric, allows one of them fewer tiles
        limit = model.max_tiles if most is None else min(most, model.max_tiles)
        counts = [plan(*size, STOCK, model, limit).tiles
                  for size in ((width, height), (height, width))]
        tied = len({shrink(width, height, *grid, model) for grid in grids}) == 1
        assert counts[0] != counts[1] or tied


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6), st.integers(1, 12000), POLICIES)
def test_a_budget_is_kept_and_never_gives_more_than_native(sizes, tokens, policy):
    budget = TilePolicy('budget', tokens, policy.max_shrink, policy.fit, policy.thumbnail_from)
    plans = plan_request(sizes, budget, INTERNVL2, [None] * len(sizes))
    natives = [plan(*size, policy, INTERNVL2) for size in sizes]
    assert sum(one.tokens(INTERNVL2) for one in plans) <= max(tokens, 256 * len(sizes))
    assert all(one.tiles <= native.tiles for one, native in zip(plans, natives))
    if sum(one.tokens(INTERNVL2) for one in natives) <= tokens:
        assert plans == natives


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=3), st.integers(256, 8000))
def test_no_other_use_of_the_budget_shrinks_the_worst_image_less(sizes, tokens):
    def worst(plans):
        return max(shrink(*size, one.columns, one.rows, INTERNVL2)
                   for size, one in zip(sizes, plans))

    budget = TilePolicy('budget', tokens)
    got = worst(plan_request(sizes, budget, INTERNVL2, [None] * len(sizes)))
    # Any better worst would need, image by image, the fewest tiles that go below it.
    least = 0
    for size in sizes:
        better = plan(*size, TilePolicy(max_shrink=max(got * (1 - 1e-9), 1)), INTERNVL2)
        if shrink(*size, better.columns, better.rows, INTERNVL2) >= got:
            return
        least += better.tiles
    assert got <= NATIVE.max_shrink or least * 256 > max(tokens, 256 * len(sizes))


def test_a_budget_goes_to_the_image_that_needs_it():
    small, large = plan_request([(448, 448), (1344, 896)], TilePolicy.parse('budget:2048'),
                                INTERNVL2, [None, None])
    assert (small.tiles, large.tiles) == (1, 7)


def test_an_image_that_does_not_fit_leaves_the_budget_to_the_others():
    huge, small = plan_request([(4480, 4480), (896, 448)], TilePolicy.parse('budget:1024'),
                               INTERNVL2, [None, None])
    assert huge.tiles + small.tiles <= 4
    assert small.tiles == 2


def test_a_budget_below_a_tile_an_image_still_shows_every_image():
    plans = plan_request([(4000, 3000)] * 5, TilePolicy.parse('budget:1'), INTERNVL2, [None] * 5)
    assert [one.tiles for one in plans] == [1] * 5


def test_detail_high_raises_the_count_under_stock_only():
    size = 3000, 2900
    assert plan(*size, STOCK, INTERNVL2, 24).tiles > plan(*size, STOCK, INTERNVL2).tiles
    assert plan(*size, NATIVE, INTERNVL2, 24) == plan(*size, NATIVE, INTERNVL2)
    assert plan(*size, STOCK, INTERNVL2, 10**9) == plan(*size, STOCK, INTERNVL2, 24)


@pytest.mark.parametrize('options, tiles', [
    ({}, None),
    ({'max_dynamic_patch': 3}, 3),
    ({'max_dynamic_patch': 3, 'detail': 'high'}, 3),
    ({'max_dynamic_patch': '3', 'detail': 'high'}, 24),
    ({'max_dynamic_patch': 2.0}, None),
    ({'max_dynamic_patch': None, 'detail': 'low'}, 6),
    ({'max_dynamic_patch': 0}, 1),
    ({'max_dynamic_patch': -5}, 1),
    ({'max_dynamic_patch': True}, 1),
    ({'max_dynamic_patch': False, 'detail': 'high'}, 1),
    ({'detail': 'medium'}, 12),
    ({'detail': 'auto'}, None),
    ({'detail': None}, None),
    ({'detail': 7}, None),
])
def test_what_a_request_asks_for(options, tiles):
    assert requested_tiles(options) == tiles


@pytest.mark.parametrize('detail', [['high'], {'level': 'high'}])
def test_a_detail_that_hangs_upstream_is_refused(detail):
    with pytest.raises(BadImageReference, match="one of 'low', 'medium', 'high', or none"):
        requested_tiles({'detail': detail})


def test_policies_are_read_from_text():
    assert TilePolicy.parse(' native ') == NATIVE
    assert TilePolicy.parse('stock') == STOCK
    assert TilePolicy.parse('budget:1280', fit='crop') == TilePolicy('budget', 1280, fit='crop')


@pytest.mark.parametrize('text', [
    '', 'Native', 'smallest', 'native:3', 'stock:', 'budget', 'budget:', 'budget:many',
    'budget:-1', 'budget:0', 'budget:1.5', 'budget:²'
])
def test_other_policies_are_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match='choose native, stock|budget:1280|at least 1'):
        TilePolicy.parse(text)


@pytest.mark.parametrize('attributes', [
    {'fit': 'zoom'}, {'max_shrink': .9}, {'max_shrink': float('nan')},
    {'max_shrink': float('inf')}, {'thumbnail_from': 1}, {'budget': 5}, {'kind': 'budget'}
])
def test_settings_that_mean_nothing_are_refused(attributes):
    with pytest.raises(ValueError, match='choose|give|needed|belongs'):
        TilePolicy(**attributes)


@pytest.mark.parametrize('size', [(0, 5), (5, 0), (-1, 5)])
def test_no_tiles_for_no_pixels(size):
    with pytest.raises(ValueError, match='each side must have at least 1'):
        plan(*size, NATIVE, INTERNVL2)


def test_the_model_is_read_from_its_configuration():
    class Vision:
        image_size, patch_size = 112, 14

    class Config:
        vision_config = Vision
        downsample_ratio, min_dynamic_patch, max_dynamic_patch = 0.5, 1, 6
        use_thumbnail = True

    assert TileModel.from_config(Config) == TileModel(112, 16, 1, 6, True)
