"""How the demo model is trained: sizes of batches, and how pictures are cut to tiles."""
from dataclasses import dataclass

import numpy as np

from .picture import SIZES
from .tiles import tile_count

GROUP = 8  # pictures of one size, cut the same way, side by side in a batch
#: Pictures in a batch on each device, by their number of tiles.
BATCH = {1: 192, 3: 96, 5: 64, 7: 48, 13: 24}
#: Share of each max_dynamic_patch from 1 to 12. All occur; the stock setting, 12, most often.
PATCH_SHARES = (0.07, ) + (0.04, ) * 4 + (0.055, ) * 6 + (0.44, )


@dataclass(frozen=True)
class Recipe:
    """Attributes:
        minutes: wall-clock time, drawing the first pictures included; the step size follows it,
        not a number of steps.
        warmup: updates in which the step size rises.
        album_gb: GiB of pixels kept on each device for drawing batches from.
        held_out: pictures of the calibration split for the log.
        first: pictures to wait for before the first step.
        jobs: processes that draw pictures.
        rate: factor on all step sizes; less than 1 to go on from trained weights.
        average: decay of the weights' moving average, which is what is exported.
        split: batches are so many times smaller than `BATCH`; for a CPU.
    """
    minutes: float = 8.0
    warmup: int = 200
    album_gb: float = 70.0
    held_out: int = 600
    first: int = 4000
    seed: int = 0
    jobs: int = 13
    rate: float = 1.0
    average: float = 0.998
    split: int = 1


def shares() -> dict[tuple[int, int], float]:
    """Share of the pictures of each (height, width)."""
    found: dict[tuple[int, int], float] = {}
    for (long, short), share, upright in SIZES:
        found[short, long] = share * (1 - upright)
        found[long, short] = share * upright
    return found


class Draw:
    """Draws what goes into a batch so that, over many batches, pictures of each size are cut with
    each max_dynamic_patch as often as `shares` and `PATCH_SHARES` say, although a batch has one
    number of tiles."""

    def __init__(self, split: int = 1):
        self._batch = {tiles: max(GROUP, count // split) for tiles, count in BATCH.items()}
        self._cuts: dict[int, list] = {}
        for (height, width), share in shares().items():
            for patch, part in enumerate(PATCH_SHARES, 1):
                self._cuts.setdefault(tile_count(width, height, patch), []).append(
                    ((height, width), patch, share * part))
        weights = {
            tiles: sum(w for *_, w in cuts) / self._batch[tiles]
            for tiles, cuts in self._cuts.items()
        }
        self._tiles = sorted(weights)
        self._weights = np.array([weights[tiles] for tiles in self._tiles]) / sum(weights.values())

    def tiles(self, rng: np.random.Generator) -> int:
        """The number of tiles of the next batch's pictures."""
        return self._tiles[rng.choice(len(self._tiles), p=self._weights)]

    def cuts(self, rng: np.random.Generator, tiles: int) -> list[tuple[tuple[int, int], int]]:
        """Size and max_dynamic_patch of every group of a batch of such pictures."""
        cuts = self._cuts[tiles]
        weights = np.array([w for *_, w in cuts])
        chosen = rng.choice(len(cuts), self._batch[tiles] // GROUP, p=weights / weights.sum())
        return [cuts[i][:2] for i in chosen]
