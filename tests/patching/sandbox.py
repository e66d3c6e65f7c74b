"""A virtual environment with this project's patch layer, a made-up LMDeploy and made-up patches.

Nothing of it touches the environment that runs the tests, and it starts in milliseconds: no torch.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Dict, List, NamedTuple

import lmdeploy_ext
from lmdeploy_ext.patching.fingerprint import fingerprint

OVERLAY = Path(lmdeploy_ext.__file__).parent
LAYER = ('__init__.py', 'autopatch.py', 'config.py', 'patching')
ENGINE = '''
class Engine:

    def step(self, n=1):
        return 'stock'

    @staticmethod
    def kind(name):
        return 'stock ' + name


def start(model):
    return 'stock ' + model
'''


class Done(NamedTuple):
    """What a process left."""
    code: int
    out: str
    err: str


class Sandbox:
    """Files and processes of one such environment."""

    def __init__(self, folder: Path, release: str = '0.6.0') -> None:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        version = f'python{sys.version_info.major}.{sys.version_info.minor}'
        self.site = folder / 'lib' / version / 'site-packages'
        self.python = folder / 'bin' / 'python'
        self.pth = self.site / 'lmdeploy_ext.pth'
        for name in LAYER:
            source, copy = OVERLAY / name, self.site / 'lmdeploy_ext' / name
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns('__pycache__'))
            else:
                copy.parent.mkdir(exist_ok=True)
                shutil.copy(source, copy)
        self.write('lmdeploy_ext/patches/__init__.py', '')
        self.write('lmdeploy/version.py', f"__version__ = '{release}'\n")
        self.write('lmdeploy/__init__.py', 'from lmdeploy.version import __version__\n')
        self.write('lmdeploy/engine.py', ENGINE)
        # copies a name, as much of upstream does
        self.write('lmdeploy/api.py', 'from lmdeploy.engine import start\n')

    def write(self, name: str, text: str) -> None:
        """Write a file below site-packages."""
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def patch(self, name: str, target: str, body: str, releases: str = '0.6.0', **more) -> None:
        """Declare a patch; `body` is the decorated function's, with `original` in scope."""
        fields = {'target': target, 'group': 'correctness', 'why': f'{name} was asked for.',
                  'remove_when': 'upstream has it', **more}
        fields.setdefault('upstream', {fingerprint(target, self.site): releases})
        arguments = ', '.join(f'{key}={value!r}' for key, value in fields.items())
        self.write(f'lmdeploy_ext/patches/{name}.py',
                   f'from lmdeploy_ext.patching import patch\n\n\n@patch({arguments})\n'
                   f'def build(original):\n{textwrap.indent(textwrap.dedent(body), "    ")}\n')

    def seam(self, name: str, after: str, body: str) -> None:
        """Declare a seam; `body` is the decorated function's, with `module` in scope."""
        self.write(f'lmdeploy_ext/patches/{name}.py',
                   f'from lmdeploy_ext.patching import seam\n\n\n'
                   f'@seam(after={after!r}, why="It registers.")\n'
                   f'def register(module):\n{textwrap.indent(textwrap.dedent(body), "    ")}\n')

    def run(self, code: str, **env: str) -> Done:
        """Run code in a process of its own, with `env` added to the environment."""
        script = self.site.parent / 'script.py'
        script.write_text(textwrap.dedent(code))
        return self._run([str(self.python), str(script)], env)

    def cli(self, *arguments: str, **env: str) -> Done:
        """Run a command of the patch layer."""
        return self._run([str(self.python), '-m', 'lmdeploy_ext.patching', *arguments], env)

    def hashes(self) -> Dict[str, str]:
        """sha256 of every file in site-packages."""
        return {str(path.relative_to(self.site)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(self.site.rglob('*')) if path.is_file()}

    def _run(self, command: List[str], env: Dict[str, str]) -> Done:
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith(('LMDEPLOY_EXT_', 'PYTHON', 'VIRTUAL_ENV'))}
        env = {**clean, 'PYTHONDONTWRITEBYTECODE': '1', 'COLUMNS': '200', **env}
        done = subprocess.run(command, env=env, cwd='/', timeout=60, text=True,
                              capture_output=True)
        return Done(done.returncode, done.stdout.strip(), done.stderr.strip())
