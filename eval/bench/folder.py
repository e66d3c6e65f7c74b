"""A folder of photographs: speed over all of them, and how near their tiles are to upstream's."""
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from ...vl import image_source
from ...vl.image_decode import PixelRules
from ...vl.image_errors import NotAnImage, UnreadableImage
from ...vl.image_header import UPRIGHT, ImageHeader, read_header
from ...vl.image_limits import ImageLimits
from ..errors import EvalError
from .fidelity import psnr
from .scope import SAME_TILES
from .speed import TOKENS_A_TILE, interleaved

# Pixels that upstream reads rightly but for orientation; of the rest (alpha, 16 bits) it makes
# other ones, and how near those are says nothing.
PLAIN_MODES = ('RGB', 'L', 'P', '1', 'CMYK', 'YCbCr')


@dataclass(frozen=True)
class Photograph:
    """One readable file: milliseconds and tiles by way, PSNR of the same tiles in dB.

    Attributes:
        turned: its EXIF orientation is not 1; it is compared with upstream's tiles of the upright
            image, for upstream leaves it lying.
        psnr_db: None where upstream's pixels are other ones; infinite where they are equal.
    """
    milliseconds: Dict[str, float]
    tiles: Dict[str, int]
    turned: bool
    psnr_db: Optional[float]


def folder_rows(ways: Sequence[Any], files: Sequence[Path], name: str,
                runs: int) -> List[Dict[str, Any]]:
    """One row a way over all images of a folder; what is no image is left out and counted.

    Args:
        ways: Stock first.
        name: what the rows call the folder.
        runs: rounds of each image, see `interleaved`.

    Raises:
        EvalError: no file is an image.
    """
    left_out: Counter = Counter()
    photographs = []
    for path in tqdm(files, desc=f'photographs of {name}', unit='file', leave=False, disable=None):
        try:
            header = _check(path, ways)
        except NotAnImage:
            left_out['not_images'] += 1
        except UnreadableImage:
            left_out['unreadable'] += 1
        else:
            photographs.append(_measure(ways, path, header, runs))
    if not photographs:
        raise EvalError(f'none of the {len(files)} files in the folder of photographs {name} is a '
                        f'readable image; expected JPEG, PNG or WebP files')
    about = {
        'part': 'photographs',
        'folder': name,
        'images': len(photographs),
        'not_images': left_out['not_images'],
        'unreadable': left_out['unreadable'],
        'turned': sum(photograph.turned for photograph in photographs)
    }
    return [{**about, **_summed(photographs, way.name, ways[0].name)} for way in ways]


def _summed(photographs: Sequence[Photograph], way: str, stock: str) -> Dict[str, Any]:
    """One way's figures over all photographs."""
    milliseconds = {name: float(np.mean([photograph.milliseconds[name]
                                         for photograph in photographs])) for name in (way, stock)}
    tiles = float(np.mean([photograph.tiles[way] for photograph in photographs]))
    distances = [photograph.psnr_db for photograph in photographs
                 if way == SAME_TILES and photograph.psnr_db is not None]
    return {
        'way': way,
        'mean_ms': round(milliseconds[way], 3),
        'ratio': round(milliseconds[stock] / milliseconds[way], 2),
        'mean_tokens': round(TOKENS_A_TILE * tiles, 1),
        'compared': len(distances),
        # null where nothing was compared, or all was identical
        'psnr_median_db': _decibels(np.median(distances)) if distances else None,
        'psnr_least_db': _decibels(min(distances)) if distances else None
    }


def _check(path: Path, ways: Sequence[Any]) -> ImageHeader:
    """The header of a file that decodes in full.

    Raises:
        UnreadableImage: it does not.
    """
    limits = ImageLimits()
    header = read_header(image_source.read(path, limits), limits, PixelRules())
    for way in ways[1:]:
        way.prepare(path)
    return header


def _measure(ways: Sequence[Any], path: Path, header: ImageHeader, runs: int) -> Photograph:
    """Times, tiles and distance of one photograph."""
    samples = interleaved(ways, path, seconds=0, least=runs, most=runs).samples
    turned = header.orientation != UPRIGHT
    return Photograph(
        {way: 1000 * float(np.median([sample.total for sample in own]))
         for way, own in samples.items()},
        {way: own[0].tiles for way, own in samples.items()}, turned,
        _distance(ways, path, header, turned))


def _distance(ways: Sequence[Any], path: Path, header: ImageHeader,
              turned: bool) -> Optional[float]:
    """PSNR of the same tiles in dB, against upstream's code on the upright image."""
    if header.mode not in PLAIN_MODES or header.transparent:
        return None
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image) if turned else image
        reference = ways[0].tiles(upright.convert('RGB'))
    own = next(way for way in ways if way.name == SAME_TILES).prepare(path, keep=True).pixels
    return psnr(own, reference)


def _decibels(value: float) -> Optional[float]:
    """To two digits; JSON has no infinity."""
    return round(float(value), 2) if math.isfinite(value) else None
