"""Which tiles an image is shown in: pure functions from sizes and a policy to plans.

`stock` is upstream's grid, which the aspect ratio alone decides. `native` is the smallest grid
that shows the pixels that are there. `budget:N` is `native` with at most N tokens a request.
"""
import heapq
from dataclasses import dataclass
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lmdeploy_ext.vl.image_errors import BadImageReference
from lmdeploy_ext.vl.stock_grid import stock_grid
from lmdeploy_ext.vl.tile_policy import TileModel, TilePolicy

DETAIL_TILES = {'low': 6, 'medium': 12, 'high': 24}  # upstream's

# For the fit `auto`:
MOST_SQUEEZE = 1.1  # how much more one axis may shrink than the other before the middle is shown
MIDDLE_SIDE = 3  # in grids of at most so many tiles a side
MOST_JUT = {True: 3 / 2, False: 4 / 3}  # an axis' length over what tiles show of it, at most; by
# whether a thumbnail shows all of it


@dataclass(frozen=True)
class TilePlan:
    """A grid of tiles, and where on its canvas of columns x rows tiles the image stands.

    Attributes:
        thumbnail: whether one more tile, the last, shows all of the image.
        width, height: of the image on the canvas, in pixels.
        left, top: its place there; negative where it juts out and is cropped.
        thumbnail_width, thumbnail_height: of the image in the thumbnail; 0 without one.
    """
    columns: int
    rows: int
    thumbnail: bool
    width: int
    height: int
    left: int
    top: int
    thumbnail_width: int = 0
    thumbnail_height: int = 0

    @property
    def tiles(self) -> int:
        """The number of tiles, the thumbnail's included."""
        return self.columns * self.rows + self.thumbnail

    def tokens(self, model: TileModel) -> int:
        """The number of tokens that the image becomes."""
        return self.tiles * model.tokens


class _Grid(NamedTuple):
    """A grid that an image could be shown in; in this order of fields, the better one first."""
    tiles: int  # with the thumbnail
    shrink: float  # how many pixels of the image become one, along an axis; 1 or more
    imbalance: int  # fewer seams first; and it makes the choice the same for a transposed image
    columns: int
    rows: int


def plan(width: int,
         height: int,
         policy: TilePolicy,
         model: TileModel,
         max_tiles: Optional[int] = None) -> TilePlan:
    """The plan of a request's only image; see `plan_request`."""
    return plan_request([(width, height)], policy, model, [max_tiles])[0]


def plan_request(sizes: Sequence, policy: TilePolicy, model: TileModel,
                 max_tiles: Sequence[Optional[int]]) -> List[TilePlan]:
    """The plans of a request's images.

    `native`: of the grids that shrink the image by no more than `max_shrink`, the one with the
    fewest tiles; where there is none, the one that shrinks it least. `budget`: the worst shrink of
    the request is made as small as N tokens allow, then the next worst, down to what `native`
    would do. Neither gives an image more tiles than `stock`, nor heeds the model's `min_tiles`,
    which could only be reached by enlarging.

    Args:
        sizes: a (width, height) in pixels for each image, after orientation.
        max_tiles: for each image what its request asked for (see `requested_tiles`), or None. It
            lowers the model's `max_tiles`; under `stock` it may raise it to 24, upstream's
            `detail: high`.
    """
    for width, height in sizes:
        if width < 1 or height < 1:
            raise ValueError(f'no tiles for an image of {width}x{height} pixels; '
                             'each side must have at least 1')
    requested = [model.max_tiles if limit is None else max(limit, 1) for limit in max_tiles]
    if policy.kind == 'stock':
        ceiling = max(model.max_tiles, DETAIL_TILES['high'])
        return [
            _stock_plan(width, height, model, min(limit, ceiling))
            for (width, height), limit in zip(sizes, requested, strict=True)
        ]
    choices = [
        _choices(width, height, policy, model, min(limit, model.max_tiles))
        for (width, height), limit in zip(sizes, requested, strict=True)
    ]
    if policy.kind == 'native':
        grids = [grids[-1] for grids in choices]
    else:
        grids = _share(choices, policy.budget // model.tokens)
    return [
        _fitted(width, height, grid, policy, model) for (width, height), grid in zip(sizes, grids)
    ]


def requested_tiles(options: Mapping[str, Any]) -> Optional[int]:
    """The most tiles that a request asks for beside an image: `max_dynamic_patch`, else `detail`.

    As upstream: a `max_dynamic_patch` that is no integer and a `detail` that is unknown ask for
    nothing; a number below 1 asks for one tile, and true and false are the numbers 1 and 0.

    Returns:
        at least 1, or None where nothing is asked for.

    Raises:
        BadImageReference: `detail` is a list or an object, which fails inside upstream's encoder.
    """
    number = options.get('max_dynamic_patch')
    if isinstance(number, int):
        return max(int(number), 1)
    detail = options.get('detail')
    if isinstance(detail, (list, dict)):
        raise BadImageReference(f'the detail of an image is a {type(detail).__name__}; '
                                f'send one of {", ".join(map(repr, DETAIL_TILES))}, or none')
    return DETAIL_TILES.get(detail) if isinstance(detail, str) else None


def _stock_plan(width: int, height: int, model: TileModel, max_tiles: int) -> TilePlan:
    """Upstream's plan: its grid, the image stretched over it, a thumbnail beside several tiles."""
    columns, rows = stock_grid(width, height, model.side, model.min_tiles, max_tiles)
    thumbnail = model.thumbnail and columns * rows > 1
    side = model.side if thumbnail else 0
    return TilePlan(columns, rows, thumbnail, columns * model.side, rows * model.side, 0, 0, side,
                    side)


def _choices(width: int, height: int, policy: TilePolicy, model: TileModel,
             max_tiles: int) -> List[_Grid]:
    """The grids worth their tiles, each with more tiles and less shrink than the one before it.
    The first has one tile; the last is what `native` takes."""
    most = _stock_plan(width, height, model, max_tiles).tiles
    grids = []
    for columns in range(1, max_tiles + 1):
        for rows in range(1, max_tiles // columns + 1):
            thumbnail = model.thumbnail and columns * rows >= policy.thumbnail_from
            shrink = max(width / (columns * model.side), height / (rows * model.side), 1.0)
            grids.append(
                _Grid(columns * rows + thumbnail, shrink, abs(columns - rows), columns, rows))
    grids.sort()
    choices = grids[:1]
    for grid in grids[1:]:
        if grid.tiles <= most and grid.shrink < choices[-1].shrink > policy.max_shrink:
            choices.append(grid)
    return choices


def _share(choices: Sequence[Sequence[_Grid]], tiles: int) -> List[_Grid]:
    """One grid an image, of so many tiles together: whichever image shrinks most is improved while
    that fits. An image whose next grid does not fit keeps its own, and the others go on."""
    chosen = [grids[0] for grids in choices]
    left = tiles - sum(grid.tiles for grid in chosen)
    # Of images that shrink alike the one that is improved with fewer tiles comes first.
    queue = [(-grids[0].shrink, grids[1].tiles - grids[0].tiles, index, 1)
             for index, grids in enumerate(choices) if len(grids) > 1]
    heapq.heapify(queue)
    while queue:
        _, cost, index, step = heapq.heappop(queue)
        if cost > left:
            continue
        left -= cost
        grids = choices[index]
        chosen[index] = grids[step]
        if step + 1 < len(grids):
            cost = grids[step + 1].tiles - grids[step].tiles
            heapq.heappush(queue, (-grids[step].shrink, cost, index, step + 1))
    return chosen


def _fitted(width: int, height: int, grid: _Grid, policy: TilePolicy,
            model: TileModel) -> TilePlan:
    """The plan that shows an image of this size in this grid."""
    canvas = grid.columns * model.side, grid.rows * model.side
    thumbnail = grid.tiles > grid.columns * grid.rows
    in_thumbnail = (0, 0)
    if policy.fit in ('stretch', 'auto'):
        content = canvas
        if policy.fit == 'auto' and max(grid.columns, grid.rows) <= MIDDLE_SIDE:
            stock = _stock_plan(width, height, model, model.max_tiles)
            if grid.columns * grid.rows < stock.columns * stock.rows:
                content = _middle_shown(width, height, canvas, MOST_JUT[thumbnail])
        if thumbnail:
            in_thumbnail = model.side, model.side
    else:
        shrink = grid.shrink
        if policy.fit == 'crop':
            covering = min(width / canvas[0], height / canvas[1])
            shrink = max(covering, shrink / policy.max_shrink, 1.0)
        content = _shrunk(width, height, shrink)
        if thumbnail:
            in_thumbnail = _shrunk(width, height, max(width, height, model.side) / model.side)
    left, top = (canvas[0] - content[0]) // 2, (canvas[1] - content[1]) // 2
    return TilePlan(grid.columns, grid.rows, thumbnail, *content, left, top, *in_thumbnail)


def _middle_shown(width: int, height: int, canvas: Tuple[int, int],
                  most_jut: float) -> Tuple[int, int]:
    """The size of an image that is stretched over the canvas, but juts out of it along an axis
    that would be squeezed.

    Of a 1344x896 picture on two by two tiles, stretching loses a third of the columns' pixels and
    no row. With the middle 896 columns shown as they are and the others in the thumbnail only, the
    demo model is nearly as right as with the seven tiles that show everything
    (docs/tile_policies.md). Beside larger grids the thumbnail is too coarse to stand in for what
    they leave out.
    """
    shrink = max(width / canvas[0], 1.0), max(height / canvas[1], 1.0)
    squeeze = shrink[0] / shrink[1]
    if max(squeeze, 1 / squeeze) <= MOST_SQUEEZE:
        return canvas
    return (round(canvas[0] * min(max(squeeze, 1.0), most_jut)),
            round(canvas[1] * min(max(1 / squeeze, 1.0), most_jut)))


def _shrunk(width: int, height: int, shrink: float) -> Tuple[int, int]:
    """The size in whole pixels, at least one, for a thin image stays visible."""
    return max(round(width / shrink), 1), max(round(height / shrink), 1)
