"""Put figures that check.py wrote into the README's table.

    python -m lmdeploy_ext.eval.demo.card stock.json one-tile.json

The block between the two marks is replaced. Figures of different weights, of different versions
of the set, or of different pictures do not go into one table.
"""
import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

README = Path(__file__).parent / 'README.md'
BEGIN, END = '<!-- figures: written by card.py -->', '<!-- end of figures -->'
SAME = ('weights_sha256', 'set_version', 'split', 'count', 'seed')


class CardError(ValueError):
    """The figures cannot be shown; the message is one line."""


def block(records: Sequence[Mapping[str, Any]]) -> str:
    """The table of some runs of check.py, with what gave it.

    Raises:
        CardError: the runs are not of the same model and pictures.
    """
    first = records[0]
    for name in SAME:
        found = {str(record.get(name)) for record in records}
        if len(found) > 1:
            raise CardError(f'the runs differ in {name} ({", ".join(sorted(found))}); '
                            'run check.py again for all of them')
    lines = ['| tiles at most | images | recall (95 % interval) | precision (95 % interval) |',
             '|---|---|---|---|']
    for record in records:
        figures = record['figures']['all']
        lines.append(f'| {record["max_dynamic_patch"]} | {figures["accuracy"]["total"]} '
                     f'| {_percent(figures["recall"])} | {_percent(figures["precision"])} |')
    commit = first['commit'] or {'id': 'unknown', 'dirty': False}
    changed = ', with uncommitted changes' if commit['dirty'] else ''
    lines += ['', f'Set version {first["set_version"]}, split `{first["split"]}`, '
              f'seed {first["seed"]}; weights `{first["weights_sha256"][:12]}`; '
              f'commit `{commit["id"][:12]}`{changed}; {first["machine"]["cpu"]}, '
              f'{first["machine"]["cores"]} cores; OpenCV, NumPy and Pillow as in the '
              'constraints files. Commands:', '', '```', *map(_command, records), '```']
    return '\n'.join(lines)


def _percent(estimate: Mapping[str, Optional[float]]) -> str:
    if estimate['value'] is None:
        return 'none'
    value, low, high = (100 * estimate[name] for name in ('value', 'low', 'high'))
    return f'{value:.1f} % ({low:.1f} to {high:.1f})'


def _command(record: Mapping[str, Any]) -> str:
    """The command without the file it wrote and without folders of one machine."""
    return (f'python -m lmdeploy_ext.eval.demo.check --split {record["split"]} '
            f'--count {record["count"]} --seed {record["seed"]} '
            f'--max-dynamic-patch {record["max_dynamic_patch"]}')


def replace_block(text: str, new: str) -> str:
    """`text` with `new` between the marks.

    Raises:
        CardError: the marks are not there.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise CardError(f'no block between {BEGIN!r} and {END!r}; put both marks back')
    return f'{before}{BEGIN}\n{new}\n{END}{after}'


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.demo.card',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runs', type=Path, nargs='+', metavar='FILE', help='of check.py --json')
    parser.add_argument('--readme', type=Path, default=README)
    args = parser.parse_args(argv)
    try:
        records = [json.loads(file.read_text(encoding='utf-8')) for file in args.runs]
        text = replace_block(args.readme.read_text(encoding='utf-8'), block(records))
    except (CardError, OSError, json.JSONDecodeError) as error:
        parser.error(str(error))
    part = args.readme.with_name(args.readme.name + '.part')
    part.write_text(text, encoding='utf-8')
    os.replace(part, args.readme)
    return 0


if __name__ == '__main__':
    sys.exit(main())
