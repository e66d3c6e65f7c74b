"""An engine in a process of its own, seen from the benchmark."""
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from lmdeploy_ext.patching.selection import VARIABLE as PATCHES

from ..errors import EvalError
from .prefix_scope import Scope

LOG_LINES = 40  # of a log that are shown where its process has ended


@dataclass(frozen=True)
class EngineSettings:
    """How an engine is started.

    Attributes:
        model: its folder.
        backend: `turbomind` or `pytorch`.
        device: `cuda` or `cpu`.
        caching: whether the prefix cache is on.
    """
    model: str
    backend: str
    device: str
    caching: bool
    scope: Scope


@dataclass(frozen=True)
class Measure:
    """A command.

    Attributes:
        number: of the round; another one has other images and texts.
        keep_features: False ends the feature cache, for good.
    """
    scenario: str
    number: int
    keep_features: bool = True


@dataclass(frozen=True)
class Answer:
    """To a command, or to the settings: what was measured, or what went wrong.

    Attributes:
        warnings: of this project, since the last answer.
    """
    value: Optional[Dict[str, Any]]
    error: Optional[str]
    warnings: List[str]


class EngineFailed(EvalError):
    """An engine did not do what it was asked for; the message says why."""


class EngineProcess:
    """Starts an engine when it is first asked, and again after its process has ended; but not
    where it could not start.

    Args:
        settings: of the engine.
        log: file of what the process prints.
        limit: seconds that its start, or a command, may take.

    Attributes:
        warnings: of this project, in the engine's process.
    """

    def __init__(self, settings: EngineSettings, log: Path, limit: float) -> None:
        self._settings, self._log, self.limit = settings, log, limit
        self._lines_shown = 0
        self._process: Optional['subprocess.Popen[bytes]'] = None
        self._pipe: Any = None
        self._no_start: Optional[str] = None
        self.warnings: List[str] = []

    def start(self) -> Dict[str, Any]:
        """Start the engine; returns what it says of itself.

        Raises:
            EngineFailed: it does not start.
        """
        if self._no_start is not None:
            raise EngineFailed(self._no_start)
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs, open(self._log, 'ab') as log:
            # in a session of its own it does not get the terminal's Ctrl-C beside ours
            self._process = subprocess.Popen(
                [*engine_command(), str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, pass_fds=[theirs.fileno()], start_new_session=True,
                env={**os.environ, PATCHES: 'all'})
        try:
            return self._exchange(self._settings)
        except EngineFailed as error:
            self.close()
            self._no_start = f'the engine does not start: {error}'
            raise EngineFailed(self._no_start) from error

    def ask(self, command: Measure) -> Dict[str, Any]:
        """Have a scenario measured; returns what `prefix_scenarios` says, and `figures`.

        Raises:
            EngineFailed: it could not be.
        """
        if self._process is None:
            self.start()
        return self._exchange(command)

    def close(self) -> None:
        """End the process, which has nothing to save."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._process = None

    def log_tail(self) -> str:
        """The last lines of what the process has printed since the last call."""
        lines, before = self._lines(), self._lines_shown
        self._lines_shown = len(lines)
        return '\n'.join(lines[before:][-LOG_LINES:])

    def _exchange(self, message: Any) -> Dict[str, Any]:
        try:
            self._pipe.send(message)
            if not self._pipe.poll(self.limit):
                self.close()
                raise EngineFailed(f'no answer within {self.limit:g} s, so the process was ended')
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise EngineFailed(self._end()) from None
        self.warnings += answer.warnings
        if answer.error is not None:
            raise EngineFailed(answer.error)
        return answer.value

    def _end(self) -> str:
        """Wait for a process that has closed its pipe; how it ended."""
        code = self._process.wait()
        self.close()
        end = signal.Signals(-code).name if code < 0 else f'exit code {code}'
        last = ([line.strip() for line in self._lines() if line.strip()]
                or ['it printed nothing'])[-1]
        return f'{re.sub(r"^([a-z_]+[.])+(?=[A-Z]+)", "", last)} ({end})'

    def _lines(self) -> List[str]:
        return self._log.read_text('utf-8', 'replace').splitlines()


def engine_command() -> List[str]:
    """The command of an engine's process, without its descriptor."""
    return [sys.executable, '-m', f'{__package__}.prefix_engine']
