"""How the demo model is trained: sizes of batches, and how pictures are cut to tiles."""
from dataclasses import dataclass

import numpy as np

from .picture import SIZES
from .tiles import Cut, free_cuts, stock_cut

GROUP = 8  # pictures of one size, cut the same way, side by side in a batch
#: Pictures in a batch on each device, by their number of tiles.
BATCH = {1: 192, 2: 128, 3: 96, 4: 80, 5: 64, 6: 56, 7: 48, 13: 24}
#: Share of each max_dynamic_patch from 1 to 12. All occur; the stock setting, 12, most often.
PATCH_SHARES = (0.07, ) + (0.04, ) * 4 + (0.055, ) * 6 + (0.44, )
#: Share of the pictures that are cut in another way than stock LMDeploy's. A large model has seen
#: images cut, padded and stretched in many ways; this one has to be shown them.
FREE_SHARE = 0.5


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
    """Draws what goes into a batch so that, over many batches, pictures of each size are cut in
    each way as often as `shares`, `PATCH_SHARES` and `FREE_SHARE` say, although a batch has one
    number of tiles."""

    def __init__(self, split: int = 1):
        self._batch = {tiles: max(GROUP, count // split) for tiles, count in BATCH.items()}
        self._cuts: dict[int, list] = {}
        for (height, width), share in shares().items():
            for how, part in _cuts_of(width, height):
                self._cuts.setdefault(how.tiles, []).append(((height, width), how, share * part))
        weights = {
            tiles: sum(w for *_, w in cuts) / self._batch[tiles]
            for tiles, cuts in self._cuts.items()
        }
        self._tiles = sorted(weights)
        self._weights = np.array([weights[tiles] for tiles in self._tiles]) / sum(weights.values())

    def tiles(self, rng: np.random.Generator) -> int:
        """The number of tiles of the next batch's pictures."""
        return self._tiles[rng.choice(len(self._tiles), p=self._weights)]

    def cuts(self, rng: np.random.Generator, tiles: int) -> list[tuple[tuple[int, int], Cut]]:
        """Size and cut of every group of a batch of such pictures."""
        cuts = self._cuts[tiles]
        weights = np.array([w for *_, w in cuts])
        chosen = rng.choice(len(cuts), self._batch[tiles] // GROUP, p=weights / weights.sum())
        return [cuts[i][:2] for i in chosen]


def _cuts_of(width: int, height: int) -> list[tuple[Cut, float]]:
    """Every way to cut a picture, and its share."""
    stock = [(stock_cut(width, height, patch), (1 - FREE_SHARE) * share)
             for patch, share in enumerate(PATCH_SHARES, 1)]
    free = free_cuts(width, height)
    return stock + [(how, FREE_SHARE / len(free)) for how in free]
