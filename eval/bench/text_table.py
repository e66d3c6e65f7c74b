"""Tables of text, for Markdown and for the terminal."""
from typing import Any, Iterable, List, Mapping, Sequence


def target_lines(targets: Iterable[Mapping[str, Any]]) -> List[List[str]]:
    """One line a figure."""
    return [['target', 'wanted', 'measured', 'met']] + [[
        target['name'], f'{target["want"]:g}', f'{target["got"]:g}',
        'yes' if target['met'] else 'no'
    ] for target in targets]


def markdown(lines: Sequence[Sequence[str]]) -> List[str]:
    """A Markdown table; the first line is its header."""
    header, *rest = ['| ' + ' | '.join(line) + ' |' for line in lines]
    return [header, '|' + '---|' * len(lines[0]), *rest]


def plain(lines: Sequence[Sequence[str]]) -> List[str]:
    """Columns of equal width."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ['  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in lines]
