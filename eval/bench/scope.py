"""What `bench-images` measures: in full, or in seconds to see that it works."""
from dataclasses import dataclass
from typing import Optional, Tuple

Size = Tuple[int, int]
# The ways of preparing an image that are compared.
STOCK, NATIVE, SAME_TILES, UPSTREAM_PIXELS = 'stock', 'native', 'same tiles', 'upstream pixels'
OURS = (NATIVE, SAME_TILES, UPSTREAM_PIXELS)
SHIPPED_NAME = 'scikit-image'  # what rows call the photographs that it ships


@dataclass(frozen=True)
class Scope:
    """How much is measured.

    Attributes:
        sizes: widths and heights of the table.
        formats: keys of `photographs.SAVE_OPTIONS`.
        seconds: how long each file of the table is measured, by all ways together.
        least: rounds at the least, whatever the seconds; in a round each way has a turn.
        most: rounds at the most.
        cores_sizes: JPEGs that all cores prepare.
        cores_seconds: length of one measurement of a number of threads.
        cores_rounds: how often each is measured.
        memory: width, height and format of the images whose peak memory is measured.
        photograph_runs: rounds of each photograph of a folder.
        photographs: of so many files of a folder at most; None for all.
    """
    sizes: Tuple[Size, ...] = ((64, 48), (480, 320), (480, 360), (612, 464), (640, 480),
                               (960, 720), (896, 1344), (1920, 1080), (4032, 3024))
    formats: Tuple[str, ...] = ('JPEG', 'PNG', 'WebP')
    seconds: float = 4.0
    least: int = 3
    most: int = 20
    cores_sizes: Tuple[Size, ...] = ((612, 464), (1920, 1080))
    cores_seconds: float = 0.6
    cores_rounds: int = 7
    memory: Tuple[Tuple[int, int, str], ...] = ((4032, 3024, 'JPEG'), (8000, 6000, 'JPEG'),
                                                (4032, 3024, 'PNG'))
    photograph_runs: int = 2
    photographs: Optional[int] = None


FULL = Scope()
QUICK = Scope(sizes=((64, 48), (612, 464)), formats=('JPEG', 'PNG'), seconds=0.0, least=1, most=1,
              cores_sizes=((612, 464), ), cores_seconds=0.05, cores_rounds=1,
              memory=((1024, 768, 'JPEG'), ), photograph_runs=1, photographs=8)
