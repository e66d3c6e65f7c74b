"""The result file: a header, then one row an image; safe to kill, to resume and to append to."""
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Any, Mapping

from .errors import OutputError
from .header import differences
from .item import IdSet
from .result_reader import HEADER_KEY, open_result, read_header, read_rows, scan_header, scan_rows
from .row import Row, encode_line
from .tally import Tally

__all__ = ['ResultFile', 'read_header', 'read_rows']


class ResultFile:
    """A result file that is locked against other runs, and written row by row.

    Each row goes to the operating system at once, so that a killed process loses none; a last line
    that a kill has cut in half is removed when the file is taken up again. Until `begin` nothing
    that is there is touched.

    Attributes:
        path: where it lies.
        done: ids that have a row, and need no other.
        tally: counts over those rows.

    Args:
        path: created where it does not exist, its folder too.
        identity: see `header.identity`.
        overwrite: throw away the result file that is there; a file of another kind is safe.
        retry_errors: throw away the error rows that are there, so that their images are tried
            again.

    Raises:
        OutputError: it cannot be written, another run writes it, it is no result file, or its rows
            come from another model, prompt, labels or settings.
    """

    def __init__(self,
                 path: Path,
                 identity: Mapping[str, Any],
                 *,
                 overwrite: bool = False,
                 retry_errors: bool = False) -> None:
        self.path = path
        self.done = IdSet()
        self.tally = Tally()
        self._created = not path.exists()
        self._fd = _open_locked(path)
        self._has_header = False
        self._end = 0  # offset behind the last whole line that is kept
        self._drop_errors = False
        try:
            self._take_up(identity, overwrite, retry_errors)
        except BaseException:
            self.close()
            raise

    def _take_up(self, identity: Mapping[str, Any], overwrite: bool, retry_errors: bool) -> None:
        """Check the header and count the rows that are there."""
        with open_result(self.path) as file:
            header, end = scan_header(self.path, file)
            if header is None or overwrite:
                return
            self._has_header, self._end = True, end
            found = differences(header, identity)
            if found:
                raise OutputError(f'{self.path} holds rows of another run ({"; ".join(found)}); '
                                  f'choose another --output, or pass --overwrite')
            for row, self._end in scan_rows(self.path, file, self._end):
                if retry_errors and row.error is not None:
                    self._drop_errors = True
                else:
                    self._count(row)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Make the file ready for rows; write the header, unless it has one."""
        if self._drop_errors:
            self._replace_without_errors()
            self._drop_errors = False
        os.ftruncate(self._fd, self._end)
        if not self._has_header:
            self._write(encode_line({HEADER_KEY: dict(header)}))
            self._has_header = True

    def append(self, row: Row) -> None:
        """Write a row.

        Raises:
            OutputError: the disk is full or gone. The rows before are safe.
        """
        self._write(row.to_line())
        self._count(row)

    def close(self) -> None:
        """Close the file; one that was created here and is still empty goes away."""
        if self._created and not self._has_header:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def __enter__(self) -> 'ResultFile':
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _count(self, row: Row) -> None:
        self.done.add(row.id)
        self.tally.add(row)

    def _write(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._end + written)
        except OSError as error:
            raise OutputError(f'cannot write {self.path}: {error.strerror}; the rows before are '
                              f'safe: make room and start again to go on') from error
        self._end += len(line)

    def _replace_without_errors(self) -> None:
        """Put a copy without error rows in the file's place, in one step."""
        target = self.path.resolve()
        copy = target.with_name(f'.{target.name}.{os.getpid()}')
        copy_fd = _open_locked(copy)
        try:
            with open_result(self.path) as file, open(copy, 'wb') as kept:
                _, end = scan_header(self.path, file)
                file.seek(0)
                kept.write(file.read(end))
                for row, _ in scan_rows(self.path, file, end):
                    if row.error is None:
                        kept.write(row.to_line())
                self._end = kept.tell()
                kept.flush()
                os.fsync(kept.fileno())
            os.replace(copy, target)
        except BaseException:
            copy.unlink(missing_ok=True)
            os.close(copy_fd)
            raise
        os.close(self._fd)
        self._fd = copy_fd


def _open_locked(path: Path) -> int:
    """A file descriptor; the lock goes with the process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError(f'cannot write {path}: {error.strerror}; choose another '
                          f'--output') from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OutputError(f'{path} is a device or a pipe; choose an --output that is a file, '
                          f'since a resumed run reads it')
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno == errno.EWOULDBLOCK:
            raise OutputError(f'another run is writing {path}; wait for it, or choose another '
                              f'--output') from error
        raise OutputError(f'cannot lock {path}: {error.strerror}; choose an --output on a local '
                          f'disk') from error
    return fd
