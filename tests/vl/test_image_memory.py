"""Peak memory, each in a process of its own."""
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from .image_files import encoded, jpeg, picture, png_bomb

SCRIPT = '''
import resource, sys
from lmdeploy_ext.vl.image_decode import PixelRules, decode
from lmdeploy_ext.vl.image_errors import ImageTooLarge
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_limits import ImageLimits

def show(path):
    with open(path, 'rb') as file:
        data = file.read()
    rules = PixelRules()
    try:
        return decode(data, read_header(data, ImageLimits(), rules), rules)
    except ImageTooLarge:
        return None

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

show(sys.argv[1])
before = peak()
shown = show(sys.argv[2])
print(peak() - before)
'''


def growth(folder, small: bytes, large: bytes) -> int:
    """Bytes by which decoding `large` raises the peak of a process that has decoded `small`."""
    paths = [folder / 'small', folder / 'large']
    for path, data in zip(paths, (small, large)):
        path.write_bytes(data)
    done = subprocess.run([sys.executable, '-c', SCRIPT, *map(str, paths)], capture_output=True,
                          text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize('kind, bound', [('upright', 1.3), ('turned', 2.3), ('CMYK', 2.7),
                                         ('RGBA', 2.7)])
def test_12_megapixels_cost_a_few_times_their_size(tmp_path, kind, bound):
    width, height = 4032, 3024
    pixels = np.tile(picture(width // 8, height // 8), (8, 8, 1))
    if kind == 'RGBA':
        file = encoded(Image.fromarray(pixels).convert('RGBA'), 'PNG', compress_level=1)
    elif kind == 'CMYK':
        file = encoded(Image.fromarray(pixels).convert('CMYK'), 'JPEG')
    else:
        file = encoded(pixels, 'JPEG', 6 if kind == 'turned' else None)
    assert growth(tmp_path, jpeg(64, 64), file) < bound * 3 * width * height + (8 << 20)


def test_a_bomb_costs_none(tmp_path):
    assert growth(tmp_path, encoded(picture(9, 9), 'PNG'), png_bomb()) < 8 << 20
