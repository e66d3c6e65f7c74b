"""Command line of the patch layer: `python -m lmdeploy_ext.patching COMMAND`."""
import argparse
import sys
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.fingerprint import fingerprints
from lmdeploy_ext.patching.source import installed_root


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command; the exit code is 0, or 1 after an error (one line on stderr)."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except PatchError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.patching', description=__doc__)
    commands = parser.add_subparsers(title='commands', required=True, metavar='COMMAND')
    command = commands.add_parser('fingerprint', help='print a target\'s `upstream={...}`, ready to paste')
    command.add_argument('target', help='module:qualname')
    command.add_argument('--root', nargs='+', type=Path, help='folders that hold `lmdeploy/`, one a release')
    command.set_defaults(run=_fingerprint)
    return parser


def _fingerprint(args: argparse.Namespace) -> int:
    found = fingerprints(args.target, args.root or [installed_root()])
    entries = [f'{key!r}: {releases!r}' for key, releases in found.items()]
    print('upstream={' + (',\n' + ' ' * len('upstream={')).join(entries) + '}')
    return 0
