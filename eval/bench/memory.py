"""Peak memory of preparing one image, as a multiple of its decoded size, in a process of its own.

`python -m lmdeploy_ext.eval.bench.memory WAY SMALL_FILE FILE` prints the MiB that the process grew
by at its largest, from after its imports and a small image on.
"""
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

from ..errors import EvalError
from .children import stock_environment
from .scope import STOCK

STATUS = Path('/proc/self/status')
MIB = 2**20


def memory_rows(small: Path, files: Sequence[Dict[str, Any]],
                ways: Sequence[str]) -> List[Dict[str, Any]]:
    """One row a file and a way.

    Args:
        small: an image for each process to warm up with.
        files: `{'path', 'image' (what the rows call it), 'width', 'height'}`.

    Raises:
        EvalError: a process failed.
    """
    rows = []
    for file in files:
        decoded = file['width'] * file['height'] * 3 / MIB
        for way in ways:
            peak = _measure_in_child(way, small, file['path'])
            rows.append({
                'part': 'memory',
                'image': file['image'],
                'way': way,
                'decoded_mib': round(decoded, 1),
                'peak_mib': round(peak, 1),
                'multiple': round(peak / decoded, 2)
            })
    return rows


def _measure_in_child(way: str, small: Path, path: Path) -> float:
    """MiB that a fresh process grows by when it prepares a file."""
    command = [sys.executable, '-m', __name__, way, str(small), str(path)]
    done = subprocess.run(command, env=stock_environment(), capture_output=True, text=True,
                          check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ['it printed nothing'])[-1]
        raise EvalError(f'measuring the memory of {way} failed: {reason}')
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(way: str, small: Path, path: Path) -> float:
    """MiB that this process grows by, at its largest, when it prepares a file."""
    prepare = _way(way).prepare
    prepare(small)
    _reset_peak()
    before = _status_mib('VmRSS')
    prepare(path)
    return _status_mib('VmHWM') - before


def _way(name: str) -> Any:
    """The way of that name; ours without importing LMDeploy and torch."""
    if name == STOCK:
        from .stock import Stock
        return Stock()
    from .ours import ways
    return next(way for way in ways() if way.name == name)


def _reset_peak() -> None:
    """Let the kernel count the peak from here on; where it refuses, the peak of the imports counts
    too and the figure is an upper bound."""
    try:
        Path('/proc/self/clear_refs').write_text('5', encoding='ascii')
    except OSError:
        return


def _status_mib(field: str) -> float:
    """`VmRSS` or `VmHWM` of this process."""
    line = next(line for line in STATUS.read_text(encoding='ascii').splitlines()
                if line.startswith(field + ':'))
    return int(line.split()[1]) / 1024


if __name__ == '__main__':
    # standard output is the measured figure
    sys.stdout.write(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))) + '\n')
