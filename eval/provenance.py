"""Where a figure comes from: command, commit, versions, machine; and the result files that `make
bench-*` write."""
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import psutil

PACKAGES = ('torch', 'lmdeploy', 'transformers', 'lmdeploy-ext', 'numpy', 'pillow')
REPOSITORY = Path(__file__).resolve().parents[1]
RESULT_FIELDS = ('command', 'commit', 'machine', 'versions', 'rows', 'targets')
TARGET_FIELDS = ('name', 'want', 'got', 'met')


class ResultError(ValueError):
    """A result lacks a field or holds a value that cannot be reproduced or judged."""


def provenance() -> Dict[str, Any]:
    """Command, commit, machine, versions and UTC time of this process."""
    return {
        'command': command(),
        'commit': commit(),
        'machine': machine(),
        'versions': versions(),
        'time': datetime.now(timezone.utc).isoformat(timespec='seconds')
    }


def command() -> List[str]:
    """This process's command line as one would type it: `python -m package …` for a module."""
    spec = getattr(sys.modules['__main__'], '__spec__', None)
    if spec is None or not spec.name:
        return ['python', *sys.argv]
    return [
        'python', '-m',
        spec.name[:-len('.__main__')] if spec.name.endswith('.__main__') else spec.name,
        *sys.argv[1:]
    ]


def commit(folder: Path = REPOSITORY) -> Optional[Dict[str, Any]]:
    """`{'id', 'dirty'}` of the checkout that `folder` lies in; None outside a git checkout or
    without git."""
    if shutil.which('git') is None:
        return None
    head = _output(['git', '-C', str(folder), 'rev-parse', 'HEAD'])
    if head is None:
        return None
    return {
        'id': head,
        'dirty': bool(_output(['git', '-C', str(folder), 'status', '--porcelain']))
    }


def versions(packages: Sequence[str] = PACKAGES) -> Dict[str, Optional[str]]:
    """Installed versions by package, without importing any; None where a package is not
    installed."""
    found: Dict[str, Optional[str]] = {'python': platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def machine() -> Dict[str, Any]:
    """CPU model, cores that this process may use, memory in GiB, GPUs by name, and the system."""
    return {
        'cpu': _cpu_model(),
        'cores': usable_cores(),
        'memory_gib': round(psutil.virtual_memory().total / 2**30, 1),
        'gpus': gpus(),
        'system': platform.platform()
    }


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def gpus() -> List[str]:
    """Names of the NVIDIA GPUs that the driver reports; empty without a driver."""
    if shutil.which('nvidia-smi') is None:
        return []
    names = _output(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'])
    return [line.strip() for line in (names or '').splitlines() if line.strip()]


def write_result(path: Path, *, rows: Sequence[Mapping[str, Any]],
                 targets: Sequence[Mapping[str, Any]], **fields: Any) -> None:
    """Write a benchmark's result as JSON, all or nothing.

    Args:
        path: usually `eval/results/NAME.json`.
        rows: what was measured, one mapping a line of the table; stock beside the rest.
        targets: `{'name', 'want', 'got', 'met'}` of each figure that was to be reached.
        fields: `command`, `commit`, `machine` and `versions`; what is missing is taken from this
            process.

    Raises:
        ResultError: the result is incomplete; the message names the field.
    """
    result = {
        **{
            name: value
            for name, value in provenance().items() if name in RESULT_FIELDS
        },
        **fields, 'rows': [dict(row) for row in rows],
        'targets': [dict(target) for target in targets]
    }
    check_result(result)
    write_json(path, result)


def check_result(result: Mapping[str, Any]) -> None:
    """Check a result of `write_result`.

    Raises:
        ResultError: naming the field, what was found and what is expected.
    """
    if set(result) != set(RESULT_FIELDS):
        raise ResultError(f'a result with the fields {", ".join(sorted(result))}; '
                          f'expected exactly {", ".join(RESULT_FIELDS)}')
    for name in RESULT_FIELDS:
        # Without a commit nobody can run it again; targets may be absent where nothing was
        # promised.
        if not result[name] and name != 'targets':
            raise ResultError(
                f'{name} of the result is empty; run inside a git checkout, and measure something')
    for target in result['targets']:
        if set(target) != set(TARGET_FIELDS) or not isinstance(target['met'], bool):
            raise ResultError(
                f'a target {dict(target)}; expected {", ".join(TARGET_FIELDS)}, `met` a bool')
    if not _finite(result):
        raise ResultError(
            'the result holds NaN or an infinite number; write null, and say why, instead')


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that the file holds the old or the new content, never a part, whenever the
    process is stopped."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + '\n'
    partial = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        partial.write_text(text, encoding='utf-8')
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _finite(value: Any) -> bool:
    """Whether no number inside is NaN or infinite."""
    if isinstance(value, Mapping):
        return all(_finite(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _cpu_model() -> str:
    """The CPU's marketing name, else its architecture."""
    info = Path('/proc/cpuinfo')
    if info.exists():
        for line in info.read_text(encoding='utf-8', errors='replace').splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def _output(arguments: Sequence[str]) -> Optional[str]:
    """A command's standard output, stripped; None where it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
