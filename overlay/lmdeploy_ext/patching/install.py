"""The `.pth` line that arms every Python process of an environment."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.patching.errors import PatchError

PTH_LINE = 'import lmdeploy_ext.autopatch\n'
_IS_ARMED = 'import sys; sys.exit("lmdeploy_ext.autopatch" not in sys.modules)'
# what pip writes where the interpreter's path is too long for a shebang, or has blanks in it
_TRAMPOLINE = re.compile(r"^'''exec' (?P<command>.+) \"\$0\" \"\$@\"$", re.MULTILINE)


def pth_path() -> Path:
    """Where the `.pth` file of this interpreter goes."""
    return Path(sysconfig.get_path('purelib')) / 'lmdeploy_ext.pth'


def install() -> bool:
    """Write the `.pth` file and see that a new process is armed by it; False if it was there.

    Raises:
        PatchError: it cannot be written, or does not work; then it is not left there.
    """
    path = pth_path()
    if path.is_file() and path.read_text() == PTH_LINE:
        return False
    part = path.with_suffix('.pth.part')  # Python reads `*.pth` only: never half a line
    try:
        part.write_text(PTH_LINE)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PatchError(f'{path} cannot be written ({error.strerror}); use an environment of '
                         f'your own, `make setup` makes one') from None
    if subprocess.run([sys.executable, '-c', _IS_ARMED], capture_output=True).returncode != 0:
        path.unlink()
        raise PatchError(f'{path} has no effect: {sys.executable} cannot import lmdeploy_ext when '
                         f'it starts; install this project with pip, `make setup` does')
    return True


def remove() -> bool:
    """Delete the `.pth` file; False if there was none.

    Raises:
        PatchError: it cannot be deleted.
    """
    path = pth_path()
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PatchError(f'{path} cannot be deleted ({error.strerror}); '
                         f'delete it as its owner') from None
    return True


def command_warning() -> Optional[str]:
    """One line where `lmdeploy`, as a shell finds it, is run by another interpreter, or None."""
    here = Path(sys.executable).parent
    advice = f'run {here / "lmdeploy"}, or put {here} first on PATH'
    command = shutil.which('lmdeploy')
    if command is None:
        return f'lmdeploy is not on PATH; {advice}'
    interpreter = interpreter_of(Path(command))
    if interpreter is None:
        return f'which Python runs {command} cannot be told; {sys.executable} is the one here'
    if not _same_python(interpreter, sys.executable):
        return f'{command} is run by {interpreter}, this is {sys.executable}; {advice}'
    return None


def interpreter_of(script: Path) -> Optional[str]:
    """The interpreter that a script names in its first lines, or None where it names none."""
    head = script.read_bytes()[:4096].decode('utf-8', 'replace')
    first, _, rest = head.partition('\n')
    words = _words(first[2:]) if first.startswith('#!') else []
    name = os.path.basename(words[0]) if words else ''
    if name == 'env':
        words = [word for word in words[1:] if not word.startswith('-') and '=' not in word]
        return shutil.which(words[0]) if words else None
    if name == 'sh':
        trampoline = _TRAMPOLINE.search(rest)
        words = _words(trampoline['command']) if trampoline else []
    return words[0] if words and os.path.isabs(words[0]) else None


def _words(text: str) -> List[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _same_python(one: str, other: str) -> bool:
    """Folders first: the interpreters of two virtual environments are links to the same file."""
    folders = {os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in (one, other)}
    return len(folders) == 1 and os.path.realpath(one) == os.path.realpath(other)
