"""The first line of a result file: what its rows were computed with."""
import hashlib
import json
import shutil
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import lmdeploy_ext

# A result file holds rows of one run, as far as these go; the rest of a header may differ.
IDENTITY = ('model', 'prompt', 'labels', 'settings')
_SAMPLE = 1 << 20
_WEIGHTS = ('*.safetensors', '*.bin', '*.pth')
_DESCRIPTIONS = ('config.json', 'generation_config.json', 'tokenizer.json', 'tokenizer.model',
                 'tokenizer_config.json', '*.index.json')
_GIT_TIMEOUT = 5


def identity(model: Mapping[str, Any], prompt: Optional[str], labels: Sequence[str],
             settings: Mapping[str, Any]) -> Dict[str, Any]:
    """The part of a header that must be equal for rows to stand in one file.

    Args:
        prompt: None where each image has its own.
    """
    return {
        'model': dict(model),
        'prompt': prompt,
        'labels': list(labels),
        'settings': dict(settings)
    }


def complete(identity_: Mapping[str, Any], engine: Mapping[str, Any],
             patches: Optional[Mapping[str, str]]) -> Dict[str, Any]:
    """A whole header.

    Args:
        engine: see `Engine.details`.
        patches: state of each patch by name, as it is once the engine runs; None where unknown.
    """
    return {
        **identity_, 'engine': dict(engine),
        'versions': {
            'lmdeploy_ext': lmdeploy_ext.__version__,
            'lmdeploy': version('lmdeploy')
        },
        'patches': patches,
        'commit': commit(),
        'started': datetime.now(timezone.utc).isoformat(timespec='seconds')
    }


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> List[str]:
    """`name: value in the file, value of this run` of each field of the identity that differs."""
    result = []
    for name in IDENTITY:
        old, new = found.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
            # a model that has merely been moved is the same model
            keys = [key for key in keys if (name, key) != ('model', 'path')]
            result += [
                f'{name}.{key}: {_shown(old.get(key))} there, {_shown(new.get(key))} here'
                for key in keys
            ]
        elif old != new:
            result.append(f'{name}: {_shown(old)} there, {_shown(new)} here')
    return result


def fingerprint(folder: Path) -> str:
    """16 hex digits that differ between models: of configuration and tokenizer the whole content,
    of weight files name, size and the first and last MiB."""
    digest = hashlib.blake2b(digest_size=8)
    for pattern in (*_DESCRIPTIONS, *_WEIGHTS):
        for path in sorted(folder.glob(pattern)):
            digest.update(f'{path.name} {path.stat().st_size}\n'.encode())
            with open(path, 'rb') as file:
                if pattern in _DESCRIPTIONS:
                    digest.update(file.read())
                    continue
                digest.update(file.read(_SAMPLE))
                file.seek(max(0, path.stat().st_size - _SAMPLE))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def commit() -> Optional[str]:
    """The commit of the checkout that this package runs from; None where it is installed."""
    if shutil.which('git') is None:
        return None
    folder = str(Path(__file__).resolve().parent)
    try:
        done = subprocess.run(['git', '-C', folder, 'rev-parse', 'HEAD'],
                              capture_output=True,
                              text=True,
                              timeout=_GIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + '…'
