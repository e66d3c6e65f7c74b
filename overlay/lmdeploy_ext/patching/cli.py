"""Command line of the patch layer: `python -m lmdeploy_ext.patching COMMAND`."""
import argparse
import sys
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.patching import install
from lmdeploy_ext.patching.catalogue import discover, find_patch
from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.difference import describe
from lmdeploy_ext.patching.drift import drift_message, find_drift, unlisted
from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.finder import arm, armed
from lmdeploy_ext.patching.fingerprint import fingerprints
from lmdeploy_ext.patching.plan import make_plan
from lmdeploy_ext.patching.releases import release_of, require_supported
from lmdeploy_ext.patching.report import status
from lmdeploy_ext.patching.source import installed_root
from lmdeploy_ext.patching.table import check_table, markdown_table, status_table, write_table


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command. The exit code is 0, or 1 after an error (one line on stderr)."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except PatchError as error:
        return _fail(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.patching', description=__doc__)
    commands = parser.add_subparsers(title='commands', required=True, metavar='COMMAND')

    def add(run, name: str, summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run)
        return command

    root = {'type': Path, 'metavar': 'DIR', 'help': 'a folder that holds `lmdeploy/`, unpacked'}
    add(_patch, 'patch', 'check every fingerprint, then patch this Python')
    add(_unpatch, 'unpatch', 'leave this Python as it was')
    add(_status, 'status', 'which patches are ready, applied, off, not needed or drifted')
    command = add(_check, 'check', 'compare every fingerprint with the installed LMDeploy')
    command.add_argument('--root', nargs='+', **root)
    command = add(_diff, 'diff', 'how upstream source differs from what a patch was written for')
    command.add_argument('name', nargs='?', help='a patch; without it, each one that has drifted')
    command.add_argument('--root', **root)
    command = add(_table, 'table', 'the patches as a Markdown table')
    where = command.add_mutually_exclusive_group()
    where.add_argument('--check', type=Path, metavar='FILE', help='fail if its table is another')
    where.add_argument('--write', type=Path, metavar='FILE', help='replace its table')
    command = add(_fingerprint, 'fingerprint', 'a target\'s `upstream={...}`, ready to paste')
    command.add_argument('target', help='module:qualname')
    command.add_argument('--root', nargs='+', **root)
    return parser


def _patch(args: argparse.Namespace) -> int:
    plan = make_plan()
    if plan.drifts:
        raise PatchError(drift_message(list(plan.drifts), plan.settings.patches))
    written = install.install()
    arm()  # as the next process will be
    print(status_table(status()))
    print(f'{sys.executable} is patched by {install.pth_path()}' +
          ('' if written else ' (it was already)'))
    _warn(install.command_warning())
    return 0


def _unpatch(args: argparse.Namespace) -> int:
    path = install.pth_path()
    print(f'deleted {path}' if install.remove() else f'nothing to delete: there is no {path}')
    return 0


def _status(args: argparse.Namespace) -> int:
    rows = status()
    print(status_table(rows))
    if not armed():
        print(f'{sys.executable} is not patched; `make patch` patches it')
    _warn(install.command_warning())
    plan = make_plan()
    return _fail(drift_message(list(plan.drifts), plan.settings.patches)) if plan.drifts else 0


def _check(args: argparse.Namespace) -> int:
    entries = discover()
    patches = [entry for entry in entries if isinstance(entry, Patch)]
    failed = False
    for root in args.root or [installed_root()]:
        release = release_of(root)
        require_supported(release)
        drifts = [drift for drift in (find_drift(p, root, release) for p in patches) if drift]
        problems = [drift_message([drift], 'all') for drift in drifts]
        problems += [line for line in (unlisted(p, root, release) for p in patches) if line]
        for problem in problems:
            _fail(problem)
        failed = failed or bool(problems)
        needed = sum(release in patch.upstream for patch in patches)
        print(f'LMDeploy {release} in {root}: {needed - len(drifts)} of {needed} patches match, '
              f'{len(patches) - needed} not needed')
    return int(failed)


def _diff(args: argparse.Namespace) -> int:
    root = installed_root()
    release = release_of(root)
    require_supported(release)
    entries = discover()
    patches = [find_patch(args.name, entries)] if args.name else [
        entry for entry in entries
        if isinstance(entry, Patch) and find_drift(entry, root, release)
    ]
    if not patches:
        print(f'no patch has drifted from LMDeploy {release} in {root}')
    for patch in patches:
        for line in describe(patch, root, args.root):
            print(line)
    return int(any(find_drift(patch, root, release) for patch in patches))


def _table(args: argparse.Namespace) -> int:
    table = markdown_table(discover())
    if args.check:
        check_table(args.check, table)
    elif args.write:
        write_table(args.write, table)
    else:
        print(table, end='')
    return 0


def _fingerprint(args: argparse.Namespace) -> int:
    found = fingerprints(args.target, args.root or [installed_root()])
    entries = [f'{key!r}: {releases!r}' for key, releases in found.items()]
    print('upstream={' + (',\n' + ' ' * len('upstream={')).join(entries) + '},')
    return 0


def _warn(message: Optional[str]) -> None:
    if message:
        print(f'warning: {message}', file=sys.stderr)


def _fail(message) -> int:
    print(f'error: {message}', file=sys.stderr)
    return 1
