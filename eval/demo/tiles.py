"""Images to tiles on a GPU, for training: InternVL2's stock preprocessing (aspect-ratio grid,
stretch, thumbnail, normalisation), and other cuts, which a large model takes as they come.

Figures are never taken from it: `check.py` uses LMDeploy's own code on PIL images. The grid is the
same for every size (tested); pixels differ by rounding, since Pillow rounds to whole grey levels
after each axis.
"""
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

import torch
import torch.nn.functional as F

TILE = 448
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Place:
    """Where an image lies on its canvas, in pixels; the rest of the canvas has the mean colour."""
    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Cut:
    """How an image is cut: `columns * rows` tiles, then the thumbnail where there is one.

    Attributes:
        place: on the canvas of all columns and rows.
        thumbnail: place on the tile that shows the whole image again, or None.
    """
    columns: int
    rows: int
    place: Place
    thumbnail: Optional[Place]

    @property
    def tiles(self) -> int:
        """Tiles, the thumbnail included."""
        return self.columns * self.rows + (self.thumbnail is not None)


@lru_cache(maxsize=None)
def stock_cut(width: int, height: int, max_num: int) -> Cut:
    """LMDeploy's cut with `max_dynamic_patch` `max_num`."""
    columns, rows = stock_grid(width, height, max_num)
    thumbnail = Place(0, 0, TILE, TILE) if columns * rows > 1 else None
    return Cut(columns, rows, Place(0, 0, columns * TILE, rows * TILE), thumbnail)


@lru_cache(maxsize=None)
def free_cuts(width: int, height: int, most: int = 6) -> tuple[Cut, ...]:
    """Cuts on up to `most` tiles that neither enlarge the image nor shrink it below 9/20: fitted
    to the middle of the canvas, or stretched over it; with and without a thumbnail."""
    cuts = []
    for columns in range(1, most + 1):
        for rows in range(1, most // columns + 1):
            scale = min(columns * TILE / width, rows * TILE / height)
            if scale < 0.45 or columns > 1 and (columns - 1) * TILE >= width \
                    or rows > 1 and (rows - 1) * TILE >= height:
                continue
            for fitted in (True, False):
                place = _place(width, height, columns * TILE, rows * TILE, fitted)
                cuts.append(Cut(columns, rows, place, None))
                if columns * rows > 1:
                    cuts.append(
                        Cut(columns, rows, place, _place(width, height, TILE, TILE, fitted)))
    return tuple(dict.fromkeys(cuts))


def _place(width: int, height: int, across: int, down: int, fitted: bool) -> Place:
    """An image of `width` x `height` on a canvas of `across` x `down`."""
    if not fitted:
        return Place(0, 0, across, down)
    scale = min(across / width, down / height, 1)
    wide, high = round(width * scale), round(height * scale)
    return Place((across - wide) // 2, (down - high) // 2, wide, high)


@lru_cache(maxsize=None)
def stock_grid(width: int, height: int, max_num: int) -> tuple[int, int]:
    """Columns and rows of tiles for an image: of all grids with at most `max_num` tiles the one
    whose aspect ratio is nearest to the image's; of equally near ones the last that the image
    fills at least half."""
    grids = set(
        (i, j) for n in range(1, max_num + 1) for i in range(1, n + 1) for j in range(1, n + 1)
        if i *
        j <= max_num)  # a set first, as upstream has it: it decides the order of equal areas
    best, least = (1, 1), float('inf')
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        off = abs(width / height - columns / rows)
        if off < least or (off == least and width * height > 0.5 * TILE * TILE * columns * rows):
            best, least = (columns, rows), off
    return best


def cut_tiles(images: torch.Tensor, how: Cut) -> torch.Tensor:
    """Cut images of one size to tiles.

    Args:
        images: uint8 `[n, height, width, 3]`.

    Returns:
        normalised `[n, tiles, 3, 448, 448]`, row by row, the thumbnail last; float32, or float16
        on a GPU.
    """
    pixels = images.permute(0, 3, 1, 2)
    pixels = pixels.half() if images.is_cuda else pixels
    canvas = _put(pixels, how.place, how.columns * TILE, how.rows * TILE)
    tiles = cut(canvas, how.rows, how.columns)
    if how.thumbnail is not None:
        tiles = torch.cat([tiles, _put(pixels, how.thumbnail, TILE, TILE).unsqueeze(1)], dim=1)
    tiles = tiles if images.is_cuda else tiles.float()
    scale, shift = _normalisation(images.device, tiles.dtype)
    return torch.addcmul(shift, tiles, scale)


def _put(pixels: torch.Tensor, place: Place, across: int, down: int) -> torch.Tensor:
    """Images on a canvas of the mean colour: `[n, 3, h, w]` -> `[n, 3, down, across]`."""
    resized = _resize(pixels, place.height, place.width)
    if (place.width, place.height) == (across, down):
        return resized
    canvas = _mean_colour(pixels.device, pixels.dtype).expand(len(pixels), 3, down, across).clone()
    canvas[:, :, place.top:place.top + place.height,
           place.left:place.left + place.width] = resized
    return canvas


def patches(tiles: torch.Tensor, side: int) -> torch.Tensor:
    """`[tiles, 3, 448, 448]` to `[tiles, patches, 3 * side * side]`, as a convolution's weights
    lie."""
    grid = TILE // side
    tiles = tiles.reshape(-1, 3, grid, side, grid, side)
    return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def cut(planes: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """`[n, c, rows * h, columns * w]` to `[n, rows * columns, c, h, w]`, row by row."""
    n, c, height, width = planes.shape
    planes = planes.reshape(n, c, rows, height // rows, columns, width // columns)
    return planes.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


@lru_cache(maxsize=None)
def _normalisation(device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor and summand of mean/std normalisation of grey levels, `[3, 1, 1]` each."""
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    return (1 / (255 * std)).view(3, 1, 1).to(device,
                                              dtype), (-mean / std).view(3, 1,
                                                                         1).to(device, dtype)


@lru_cache(maxsize=None)
def _mean_colour(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """`[3, 1, 1]`: grey levels that normalisation makes zero."""
    return (torch.tensor(MEAN) * 255).round().view(3, 1, 1).to(device, dtype)


@lru_cache(maxsize=None)
def _weights(old: int, new: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Matrix `[new, old]` that resizes one axis as Pillow's bicubic does: A = -0.5, wider when it
    shrinks."""
    unit = torch.eye(old)[None, None]
    return F.interpolate(unit, (new, old), mode='bicubic', antialias=True)[0, 0].to(device, dtype)


def _resize(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bicubic. On a GPU by two matrix products, which are faster than torch's kernel there; on a
    CPU torch has one for uint8."""
    if not pixels.is_cuda:
        return F.interpolate(pixels, (height, width), mode='bicubic', antialias=True)
    rows, columns = (_weights(old, new, pixels.device, pixels.dtype)
                     for old, new in zip(pixels.shape[-2:], (height, width)))
    return (rows @ (pixels @ columns.T)).round_().clamp_(0, 255)
