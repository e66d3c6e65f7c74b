"""What a run came to, while it runs and at its end."""
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from .runner import Completion
from .tally import Tally

_BAR = '{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]'
# A log file gets a line every so many seconds, a terminal ten a second.
_LOG_INTERVAL = 30


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes:
        path: the result file.
        images: in the source.
        before: of these, those that had a row already.
        written: rows of this run.
        reused: of these, identical images' answers.
        seconds: of this run, model load excluded.
        tally: counts over the whole result file.
        prompt_tokens, cached_tokens: of the images of this run whose engine told what of their
            prompt it had in its prefix cache; see `Answer`.
        interrupted: whether Ctrl-C ended the run early.
    """
    path: Path
    images: int
    before: int
    written: int
    reused: int
    seconds: float
    tally: Tally
    prompt_tokens: int = 0
    cached_tokens: int = 0
    interrupted: bool = False

    @property
    def images_per_minute(self) -> float:
        return 60 * self.written / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        tally = self.tally
        labels = ', '.join(f'{label} {count}' for label, count in tally.labels.most_common())
        lines = [
            f'{self.path}: {tally.rows} rows' +
            (f' ({self.before} from before)' if self.before else ''),
            f'labels: {labels or "none"}', f'errors: {tally.errors}'
        ]
        if tally.off_label:
            lines.append(f'off-label: {tally.off_label} answers begin with no label; see `text`')
        if self.reused:
            lines.append(f'identical images: {self.reused} answered without computing again')
        if self.cached_tokens:
            share = self.cached_tokens / self.prompt_tokens
            lines.append(f'prefix cache: {self.cached_tokens} of {self.prompt_tokens} prompt '
                         f'tokens ({share:.0%})')
        lines.append(f'{self.written} images in {self.seconds:.1f} s, '
                     f'{self.images_per_minute:.0f} images/min')
        if self.interrupted:
            lines.append('interrupted: the same command goes on from here')
        return '\n'.join(lines)


class Progress:
    """Counts completions, and shows them on a bar on stderr.

    Args:
        images: in the source.
        before: of these, those that have a row already.
        shown: whether there is a bar.
    """

    def __init__(self, images: int, before: int, shown: bool) -> None:
        self._images, self._before = images, before
        self._written = self._errors = self._reused = 0
        self._prompt_tokens = self._cached_tokens = 0
        interval = 0.1 if sys.stderr.isatty() else _LOG_INTERVAL
        self._bar = tqdm(total=images,
                         initial=before,
                         disable=not shown,
                         bar_format=_BAR,
                         dynamic_ncols=True,
                         mininterval=interval,
                         maxinterval=interval,
                         file=sys.stderr)
        self._started = time.monotonic()

    def add(self, completion: Completion) -> None:
        self._written += 1
        self._errors += completion.row.error is not None
        self._reused += completion.reused
        if completion.cached_tokens is not None:
            self._prompt_tokens += completion.row.input_tokens
            self._cached_tokens += completion.cached_tokens
        rate = 60 * self._written / max(time.monotonic() - self._started, 1e-6)
        self._bar.set_postfix_str(f'{rate:.0f} images/min, {self._errors} errors', refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()

    def summary(self, path: Path, tally: Tally, interrupted: bool = False) -> Summary:
        """The run's summary up to now."""
        return Summary(path, self._images, self._before, self._written, self._reused,
                       time.monotonic() - self._started, tally, self._prompt_tokens,
                       self._cached_tokens, interrupted)
