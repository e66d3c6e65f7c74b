"""Memory stays flat, whatever the number of images."""
import subprocess
import sys

import pytest

from .fakes import write_images


def peak(folder, output, *options):
    command = [sys.executable, '-m', 'tests.classify.run_with_fake', folder, output, *options]
    return float(subprocess.check_output(list(map(str, command)), text=True))


@pytest.mark.parametrize('few, many, allowed', [
    (100, 1_000, 10),
    pytest.param(500, 20_000, 20, marks=pytest.mark.slow),
])
def test_peak_memory_hardly_grows(tmp_path, few, many, allowed):
    """Measured: 40 MiB at 500 images, 50 at 20,000: 64 bits that are kept of each id, and SQLite's
    cache, which ends at 16 MiB."""
    write_images(tmp_path / 'many', many)
    write_images(tmp_path / 'few', few)
    small = peak(tmp_path / 'few', tmp_path / 'few.jsonl', 0, 32)
    large = peak(tmp_path / 'many', tmp_path / 'many.jsonl', 0, 32)
    assert large - small < allowed, f'{small:.0f} MiB at {few}, {large:.0f} MiB at {many} images'
