"""Stock InternVL2 preprocessing on a GPU, for training: aspect-ratio grid, stretch, thumbnail,
normalisation.

Figures are never taken from it: `check.py` uses LMDeploy's own code on PIL images. The grid is the
same for every size (tested); pixels differ by rounding, since Pillow rounds to whole grey levels
after each axis.
"""
from functools import lru_cache

import torch
import torch.nn.functional as F

TILE = 448
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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


def tile_count(width: int, height: int, max_num: int) -> int:
    """How many tiles an image makes, its thumbnail included."""
    columns, rows = stock_grid(width, height, max_num)
    return columns * rows + (columns * rows > 1)


def stock_tiles(images: torch.Tensor, max_num: int) -> torch.Tensor:
    """Cut images of one size to tiles.

    Args:
        images: uint8 `[n, height, width, 3]`.
        max_num: `max_dynamic_patch`.

    Returns:
        normalised `[n, tiles, 3, 448, 448]`, row by row, the thumbnail last; float32, or float16
        on a GPU.
    """
    height, width = images.shape[1:3]
    columns, rows = stock_grid(width, height, max_num)
    pixels = images.permute(0, 3, 1, 2)
    pixels = pixels.half() if images.is_cuda else pixels
    tiles = cut(_resize(pixels, rows * TILE, columns * TILE), rows, columns)
    if rows * columns > 1:
        tiles = torch.cat([tiles, _resize(pixels, TILE, TILE).unsqueeze(1)], dim=1)
    tiles = tiles if images.is_cuda else tiles.float()
    scale, shift = _normalisation(images.device, tiles.dtype)
    return torch.addcmul(shift, tiles, scale)


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
