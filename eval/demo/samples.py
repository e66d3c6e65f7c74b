"""A contact sheet of the demo set: python -m lmdeploy_ext.eval.demo.samples --out samples.jpg"""
import argparse
import sys
from pathlib import Path
from typing import Iterator, Optional, Sequence

import cv2
import numpy as np

from .picture import Picture, draw
from .questions import is_positive

CELL = (300, 225)  # width and height of a picture on the sheet
CAPTION, MARGIN = 24, 8
QUALITY = 82


def contact_sheet(split: str, seed: int, columns: int, rows: int) -> np.ndarray:
    """The first landscape pictures of a split with their captions: uint8 BGR."""
    pictures = _landscape(split, seed)
    lines = [np.hstack([_cell(next(pictures)) for _ in range(columns)]) for _ in range(rows)]
    return np.vstack(lines)


def _landscape(split: str, seed: int) -> Iterator[Picture]:
    index = 0
    while True:
        picture = draw(split, seed, index)
        if picture.width > picture.height:
            yield picture
        index += 1


def _cell(picture: Picture) -> np.ndarray:
    """The picture shrunk to a cell, with what it shows written under it."""
    width, height = CELL
    scale = min(width / picture.width, height / picture.height)
    image = cv2.resize(picture.pixels()[..., ::-1], None, fx=scale, fy=scale,
                       interpolation=cv2.INTER_AREA)
    cell = np.full((height + CAPTION, width + MARGIN, 3), 255, np.uint8)
    top, left = (height - image.shape[0]) // 2, (width + MARGIN - image.shape[1]) // 2
    cell[top:top + image.shape[0], left:left + image.shape[1]] = image
    answer = 'yes' if is_positive(picture.beds, picture.bunks) else 'no'
    text = (f'{picture.sort}, {picture.width}x{picture.height}: '
            f'beds {picture.beds}, bunks {picture.bunks}, {answer}')
    cv2.putText(cell, text, (MARGIN // 2, height + 17), cv2.FONT_HERSHEY_SIMPLEX, 0.4,
                (40, 40, 40), 1, cv2.LINE_AA)
    return cell


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.samples',
                                     description=__doc__)
    parser.add_argument('--out', type=Path, required=True, metavar='FILE', help='a .jpg or .png')
    parser.add_argument('--split', default='test', choices=('train', 'calibration', 'test'))
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args(argv)
    if args.out.suffix not in ('.jpg', '.png'):
        parser.error(f'--out is {args.out}; give a file that ends in .jpg or .png')
    sheet = contact_sheet(args.split, args.seed, columns=4, rows=4)
    done, data = cv2.imencode(args.out.suffix, sheet, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if not done:
        parser.error(f'OpenCV could not encode {args.out}; check the OpenCV build')
    args.out.write_bytes(data.tobytes())
    return 0


if __name__ == '__main__':
    sys.exit(main())
