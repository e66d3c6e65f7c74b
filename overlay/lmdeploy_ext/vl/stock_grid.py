"""The tile grid that upstream gives an image: InternVL's dynamic aspect ratio, tie by tie.

Published with InternVL 1.5 (Chen et al. 2024, "How Far Are We to GPT-4V?"): of the grids with so
many tiles, the one whose aspect ratio is nearest to the image's. The size of the image matters in
ties only, so that a 64x48 image gets the 12 tiles of a 2000x1500 one.
"""
from functools import lru_cache
from typing import List, Tuple


def stock_grid(width: int, height: int, side: int, min_tiles: int,
               max_tiles: int) -> Tuple[int, int]:
    """Columns and rows of upstream's grid for an image.

    Args:
        width, height: of the image, in pixels, at least 1.
        side: of a tile, in pixels.
        min_tiles, max_tiles: bounds on columns times rows. Where no grid lies between them the
            answer is one tile.
    """
    # Computed in floating point exactly as upstream does: ties hang on it.
    aspect = width / height
    best, least = (1, 1), float('inf')
    for columns, rows in _grids(min_tiles, max_tiles):
        difference = abs(aspect - columns / rows)
        if difference < least:
            best, least = (columns, rows), difference
        elif difference == least and width * height > 0.5 * side * side * columns * rows:
            best = (columns, rows)
    return best


@lru_cache(maxsize=256)
def _grids(min_tiles: int, max_tiles: int) -> List[Tuple[int, int]]:
    """The grids in upstream's order: by their number of tiles, and among equals in the order of a
    `set` of tuples, which for equal insertions is the same in every CPython process."""
    grids = set()
    for longest in range(min_tiles, max_tiles + 1):
        for columns in range(1, longest + 1):
            for rows in range(1, min(longest, max_tiles // columns) + 1):
                if columns * rows >= min_tiles:
                    grids.add((columns, rows))
    return sorted(grids, key=lambda grid: grid[0] * grid[1])
