"""Run every variant in a process of its own, then score: what `run` does."""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from tqdm import tqdm

from .compare import score
from .dataset import check_labels, read_images
from .errors import EvalError
from .report import write_report
from .resume import open_run
from .run_folder import LabelledImage, RunFolder, VariantFolder
from .settings import EvalSettings
from .variants import Variant

POLL_SECONDS = 0.25
STOP_SECONDS = 30
LOG_SECONDS = 15


def evaluate(settings: EvalSettings,
             variants: Sequence[Variant],
             out: Path,
             overwrite: bool = False,
             progress: bool = True) -> Dict[str, Any]:
    """Predict with each variant, score, and write the report; goes on where it was interrupted.

    Args:
        out: the run's folder; new, or that of the same run.
        overwrite: whether rows of another run may be deleted.
        progress: whether a bar on stderr shows how far a variant is.

    Returns:
        The report, as in report.json. A variant that failed is in it, with its error.

    Raises:
        ClassifyError: wrong settings, images or folder; or no variant answered anything.
    """
    settings.check()
    images = read_images(Path(settings.manifest), settings.test_split, settings.calibration_split,
                         settings.limit)
    check_labels(images, settings.labels, settings.positive, settings.test_split)
    folder = RunFolder(out)
    open_run(folder, settings, variants, images, overwrite)
    for variant in variants:
        folder.variant(variant.name).error_file.unlink(missing_ok=True)
    for number in range(1, settings.rounds + 1):
        for variant in variants:
            if folder.variant(variant.name).read_error() is None:
                run_variant(folder, variant, number, images, progress)
    report = score(folder)
    if not any(variant['images'] for variant in report['variants']):
        raise EvalError(f'no variant answered: {report["variants"][0]["error"]}')
    write_report(folder)
    return report


def run_variant(folder: RunFolder,
                variant: Variant,
                number: int,
                images: Sequence[LabelledImage],
                progress: bool = True) -> None:
    """Answer the images that a variant has no row for yet, in a new process.

    Its failure is stored, not raised: the other variants' rows are worth keeping. An interruption
    ends the process, waits for it and is raised.
    """
    own = folder.variant(variant.name)
    if len(own.read_outcomes(images, number)) == len(images):
        return
    own.path.mkdir(parents=True, exist_ok=True)
    with open(own.log_file, 'ab') as log:
        started_at = log.tell()
        # In a session of its own it does not get the terminal's Ctrl-C beside ours.
        process = subprocess.Popen(worker_command(folder, variant, number),
                                   stdout=log,
                                   stderr=log,
                                   stdin=subprocess.DEVNULL,
                                   start_new_session=True,
                                   env=dict(os.environ, **dict(variant.env)))
        try:
            _watch(process, own.times_file(number), variant.name, len(images), progress)
        finally:
            _stop(process)
    if process.returncode:
        own.error_file.write_text(_reason(own, process.returncode, started_at) + '\n',
                                  encoding='utf-8')


def worker_command(folder: RunFolder, variant: Variant, number: int) -> List[str]:
    """The command that answers a variant's images of one round."""
    return [
        sys.executable, '-m', 'lmdeploy_ext.eval.worker',
        str(folder.path), variant.name,
        str(number)
    ]


def _watch(process: 'subprocess.Popen[bytes]', times: Path, name: str, total: int,
           progress: bool) -> None:
    """Wait for the process; show the lines of its times file as they come."""
    lines = _NewLines(times)
    # A log file wants a line now and then, not ten a second.
    interval = 0.1 if sys.stderr.isatty() else LOG_SECONDS
    with tqdm(total=total,
              initial=lines.count(),
              desc=name,
              unit='image',
              disable=not progress,
              mininterval=interval,
              maxinterval=interval) as bar:
        running = True
        while running:
            # Asked before the lines are counted, so that the last ones are.
            running = process.poll() is None
            bar.update(lines.count())
            if running:
                time.sleep(POLL_SECONDS)


class _NewLines:
    """Counts lines that another process appends to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def count(self) -> int:
        """Lines since the last call."""
        if not self._path.is_file():
            return 0
        with open(self._path, 'rb') as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        return new.count(b'\n')


def _stop(process: 'subprocess.Popen[bytes]') -> None:
    """End the process if it still runs: politely, so that it closes its files, then at once."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _reason(own: VariantFolder, code: int, started_at: int) -> str:
    """Why a process failed: the last line that it printed, and how it ended."""
    with open(own.log_file, 'rb') as log:
        log.seek(started_at)
        lines = log.read().decode('utf-8', 'replace').strip().splitlines()
    last = lines[-1].strip() if lines else 'it printed nothing'
    # Of `package.module.SomeError: message` in a traceback, the module says nothing to a user.
    last = re.sub(r'^(\w+\.)+(?=\w+: )', '', last)
    end = signal.Signals(-code).name if code < 0 else f'exit code {code}'
    return f'{last} ({end}; see {own.log_file})'
