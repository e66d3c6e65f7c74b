"""The catalogue as tables: for the terminal, and for the README."""
import shutil
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from lmdeploy_ext.patching.catalogue import Declaration
from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.errors import PatchError

BEGIN = '<!-- patches:begin -->\n'
END = '<!-- patches:end -->'
TARGET_WIDTH = 48


def status_table(rows: Sequence[Dict[str, Any]]) -> str:
    """The rows of `status()` as aligned text; `why` is cut to the terminal's width."""
    cells = [('NAME', 'GROUP', 'STATE', 'TARGET', 'WHY')]
    cells += [(row['name'], row['group'] or row['kind'], row['state'],
               _shorten_start(row['target'], TARGET_WIDTH), row['why']) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    room = max(shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths), 40)
    return '\n'.join('  '.join([*(cell.ljust(width) for cell, width in zip(line, widths)),
                                _shorten(line[4], room)]) for line in cells)


def markdown_table(entries: Sequence[Declaration]) -> str:
    """The README's table: one line for each patch and seam."""
    lines = ['| patch | group | LMDeploy | why | removed when |', '|---|---|---|---|---|']
    for entry in entries:
        if isinstance(entry, Patch):
            cells = [entry.name, entry.group, entry.releases, entry.why, entry.remove_when]
        else:
            cells = [entry.name, 'seam', 'all', entry.why, 'never: it changes no upstream code']
        lines.append('| ' + ' | '.join(' '.join(cell.split()).replace('|', '\\|')
                                       for cell in cells) + ' |')
    return '\n'.join(lines) + '\n'


def write_table(path: Path, table: str) -> None:
    """Put the table between the markers of a file.

    Raises:
        PatchError: the file cannot be read or written, or has no markers.
    """
    before, _, after = _split(path)
    try:
        path.write_text(before + table + after, encoding='utf-8')
    except OSError as error:
        raise PatchError(f'{path} cannot be written ({error.strerror})') from None


def check_table(path: Path, table: str) -> None:
    """See that the table between the markers of a file is this one.

    Raises:
        PatchError: it is another one, or cannot be read.
    """
    if _split(path)[1] != table:
        raise PatchError(f'the patch table in {path} is not that of patches/; '
                         f'`make table` writes it')


def _split(path: Path) -> Tuple[str, str, str]:
    """What stands before, between and after the markers, which stay outside."""
    try:
        text = path.read_text(encoding='utf-8')
    except OSError as error:
        raise PatchError(f'{path} cannot be read ({error.strerror})') from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise PatchError(f'{path} lacks the lines {BEGIN.strip()} and {END}; put them where the '
                         f'table goes')
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    return before + BEGIN, between, END + after


def _shorten_start(text: str, room: int) -> str:
    return text if len(text) <= room else '…' + text[len(text) - room + 1:]


def _shorten(text: str, room: int) -> str:
    line = ' '.join(text.split())
    return line if len(line) <= room else line[:room - 1].rstrip() + '…'
