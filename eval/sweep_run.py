"""What `python -m lmdeploy_ext.eval sweep` runs: the ready-made variants, by default on the demo
model and set."""
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.patching.selection import VARIABLE as PATCHES

from .demo_run import DEMO, IMAGES, SEED, render_set
from .errors import EvalError
from .image_tokens import tile_tokens
from .settings import check_model

STOCK_CAPS = (12, 6, 3, 2, 1)
MAX_SHRINKS = (1, 1.5, 2)  # beside the default
BUDGET_TILES = (2, 5)
CALIBRATION_SHARE = IMAGES['calibration'] / IMAGES['test']


def ready_made(model: str, has_gpu: bool) -> str:
    """The variants of a sweep, as `--variants` takes them: upstream's code capped by
    `max_dynamic_patch`, stock tiles by this project, `native` with several `max_shrink`, and
    token budgets.

    Raises:
        EvalError: no such model, or one whose tiles are not known.
    """
    check_model(model)
    upstream = 'none' if has_gpu else 'cpu'
    variants = [f'stock-{cap}:{PATCHES}={upstream}:max_dynamic_patch={cap}' for cap in STOCK_CAPS]
    variants += ['same-tiles:LMDEPLOY_EXT_TILES=stock', 'native:LMDEPLOY_EXT_TILES=native']
    variants += [
        f'shrink-{shrink:g}:LMDEPLOY_EXT_TILES=native:LMDEPLOY_EXT_MAX_SHRINK={shrink:g}'
        for shrink in MAX_SHRINKS
    ]
    return ','.join(variants + _budgets(model))


def _budgets(model: str) -> List[str]:
    tokens = tile_tokens(model)
    if tokens is None:
        raise EvalError(f'{model}/config.json does not tell the tokens of a tile, as those of '
                        f'InternVL2 models do; name the variants of the sweep with --variants')
    return [f'budget-{tiles * tokens}:LMDEPLOY_EXT_TILES=budget:{tiles * tokens}'
            for tiles in BUDGET_TILES]


def demo_manifest(images: Optional[int], seed: Optional[int]) -> str:
    """Render so many test images of the demo set, and half as many for calibration; returns the
    manifest. Another seed makes other images.

    Raises:
        EvalError: fewer than two, or the renderer fails.
    """
    test = IMAGES['test'] if images is None else images
    if test < 2:
        raise EvalError(f'--images {test} are too few; expected at least 2')
    counts = {'test': test, 'calibration': max(1, round(test * CALIBRATION_SHARE))}
    return str(render_set(DEMO / 'images', counts, SEED if seed is None else seed))


def demo_model() -> str:
    """The folder of the demo model."""
    return str(Path(DEMO) / 'model')
