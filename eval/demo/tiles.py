"""Stock InternVL2 preprocessing on a GPU, for training: aspect-ratio grid, stretch, thumbnail, normalisation.

Figures are never taken from it: `check.py` uses LMDeploy's own code on PIL images. The grid is the same for every size
(tested); pixels differ by rounding, since Pillow rounds to whole grey levels after each axis.
"""
from functools import lru_cache

import torch
import torch.nn.functional as F

TILE = 448
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@lru_cache(maxsize=None)
def stock_grid(width: int, height: int, max_num: int) -> tuple[int, int]:
    """Columns and rows of tiles for an image: of all grids with at most `max_num` tiles the one whose aspect ratio is
    nearest to the image's; of equally near ones the last that the image fills at least half."""
    grids = set((i, j) for n in range(1, max_num + 1) for i in range(1, n + 1) for j in range(1, n + 1)
                if i * j <= max_num)  # a set first, as upstream has it: it decides the order of equal areas
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
        normalised float32 `[n, tiles, 3, 448, 448]`, row by row, the thumbnail last.
    """
    height, width = images.shape[1:3]
    columns, rows = stock_grid(width, height, max_num)
    pixels = images.permute(0, 3, 1, 2).float()
    tiles = _resize(pixels, rows * TILE, columns * TILE)
    tiles = tiles.unflatten(2, (rows, TILE)).unflatten(4, (columns, TILE))  # [n, 3, rows, 448, columns, 448]
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    if rows * columns > 1:
        tiles = torch.cat([tiles, _resize(pixels, TILE, TILE).unsqueeze(1)], dim=1)
    mean, std = (torch.tensor(x, device=images.device).view(3, 1, 1) for x in (MEAN, STD))
    return (tiles / 255 - mean) / std


def _resize(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Bicubic with A = -0.5 and a support that grows with shrinking, as Pillow's."""
    resized = F.interpolate(pixels, (height, width), mode='bicubic', antialias=True)
    return resized.round_().clamp_(0, 255)
