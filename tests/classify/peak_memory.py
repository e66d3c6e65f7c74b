"""Peak memory of scripts/classify.py at two numbers of images, with a real model.

    python -m tests.classify.peak_memory MODEL [FEW MANY [OPTION …]]      (500 and 5,000 images)

Further options go to classify.py; `--max-dynamic-patch 1` makes 5,000 images a few minutes.

Exit code 1 where the difference is 300 MiB or more.
"""
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'classify.py'
ALLOWED_MIB = 300


def main(model: str, few: str = '500', many: str = '5000', *options: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        peaks = []
        for count in (int(few), int(many)):
            images = Path(folder, f'{count}')
            write_photos(images, count)
            command = [
                sys.executable, SCRIPT, images, '--model', model, '--labels', '是,否', '--prompt',
                '房间里有三张或更多的床，或者有上下铺吗？请只回答是或否。', '--output',
                Path(folder, f'{count}.jsonl'), *options
            ]
            subprocess.run(list(map(str, command)), check=False)
            # the largest child so far: runs go from few images to many
            peaks.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
            print(f'{count} images: peak {peaks[-1]:.0f} MiB', flush=True)
    return int(peaks[1] - peaks[0] >= ALLOWED_MIB)


def write_photos(folder: Path, count: int) -> None:
    """Different JPEGs in the sizes that people upload."""
    folder.mkdir()
    generator = np.random.default_rng(count)
    sizes = [(480, 320), (480, 360), (612, 464), (640, 480), (320, 480), (448, 448)]
    for number in range(count):
        coarse = generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize(sizes[number % len(sizes)], Image.BILINEAR)
        image.save(folder / f'{number:05}.jpg')


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
