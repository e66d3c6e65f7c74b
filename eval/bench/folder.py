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
from ...vl.image_header import ImageHeader, read_header
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
        runs: times that each image is prepared by each way.

    Raises:
        EvalError: no file is an image.
    """
    left_out: Counter = Counter()
    photographs = []
    for path in tqdm(files, desc=f'photographs of {name}', unit='file', leave=False):
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
    stock = _mean_ms(photographs, ways[0].name)
    return [{
        **about, 'way': way.name,
        'mean_ms': round(_mean_ms(photographs, way.name), 3),
        'ratio': round(stock / _mean_ms(photographs, way.name), 2),
        'mean_tokens': round(
            TOKENS_A_TILE *
            float(np.mean([photograph.tiles[way.name] for photograph in photographs])), 1),
        **(_distances(photographs) if way.name == SAME_TILES else _distances([]))
    } for way in ways]


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
    samples = interleaved(ways, path, seconds=0, least=runs, most=runs)
    turned = header.orientation not in (0, 1)
    return Photograph(
        {way: 1000 * float(np.median([sample.total for sample in own]))
         for way, own in samples.items()},
        {way: own[0].tiles for way, own in samples.items()}, turned,
        _distance(ways, path, turned))


def _distance(ways: Sequence[Any], path: Path, turned: bool) -> Optional[float]:
    """PSNR of the same tiles in dB, against upstream's code on the upright image."""
    with Image.open(path) as image:
        if image.mode not in PLAIN_MODES or 'transparency' in image.info:
            return None
        upright = ImageOps.exif_transpose(image) if turned else image
        reference = ways[0].tiles(upright.convert('RGB'))
    own = next(way for way in ways if way.name == SAME_TILES).prepare(path, keep=True).pixels
    return psnr(own, reference)


def _distances(photographs: Sequence[Photograph]) -> Dict[str, Any]:
    """Median and least PSNR in dB; null where nothing was compared, or all was identical."""
    values = [photograph.psnr_db for photograph in photographs if photograph.psnr_db is not None]
    return {
        'compared': len(values),
        'psnr_median_db': _decibels(np.median(values)) if values else None,
        'psnr_least_db': _decibels(min(values)) if values else None
    }


def _decibels(value: float) -> Optional[float]:
    """To two digits; JSON has no infinity."""
    return round(float(value), 2) if math.isfinite(value) else None


def _mean_ms(photographs: Sequence[Photograph], way: str) -> float:
    """Milliseconds an image of a way."""
    return float(np.mean([photograph.milliseconds[way] for photograph in photographs]))
