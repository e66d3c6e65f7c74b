"""Find the source text of an upstream symbol without importing its module.

`importlib.util.find_spec('lmdeploy.vl.engine')` would import `lmdeploy` and `lmdeploy.vl`: seconds
of torch, and exactly what must not happen before the check. So only the top package is located,
and the rest is walked by hand.
"""
import ast
import functools
import importlib.util
import textwrap
import tokenize
from pathlib import Path
from typing import List, Tuple

from lmdeploy_ext.patching.errors import PatchError

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = (ast.If, ast.Try, ast.With, ast.ExceptHandler)


def installed_root() -> Path:
    """The folder that holds the installed `lmdeploy/`.

    Raises:
        PatchError: LMDeploy is not installed for this interpreter.
    """
    spec = importlib.util.find_spec('lmdeploy')
    if spec is None or spec.origin is None:
        raise PatchError('LMDeploy is not installed for this Python; run `make setup`, '
                         'or `pip install lmdeploy==0.6.0`')
    return Path(spec.origin).parent.parent


def split_target(target: str) -> Tuple[str, str]:
    """`module:qualname` as its two parts.

    Raises:
        PatchError: it has another form, or names a module outside LMDeploy.
    """
    module, colon, qualname = target.partition(':')
    names = module.split('.') + qualname.split('.')
    if not colon or not all(name.isidentifier() for name in names):
        raise PatchError(f'{target!r} is no target; '
                         f'write it as "lmdeploy.vl.engine:ImageEncoder.forward"')
    if names[0] != 'lmdeploy':
        raise PatchError(f'{target!r} is not in lmdeploy; nothing else is patched')
    return module, qualname


def module_file(module: str, root: Path) -> Path:
    """The file of a module in `root` (the folder that holds `lmdeploy/`).

    Raises:
        PatchError: there is no such module.
    """
    base = root.joinpath(*module.split('.'))
    for path in (base / '__init__.py', base.with_name(base.name + '.py')):
        if path.is_file():
            return path
    raise PatchError(f'module {module} does not exist in {root}')


def symbol_source(target: str, root: Path) -> str:
    """The dedented source text of a symbol, decorators included, as it stands in the file.

    Where a name is defined more than once (the setter of a property, the branches of an `if`), the
    definitions follow each other, so that a change in any of them is seen.

    Args:
        target: `module:qualname` of a function, method or class, or of a variable assigned there.
        root: the folder that holds `lmdeploy/`.

    Raises:
        PatchError: the module or the symbol does not exist.
    """
    module, qualname = split_target(target)
    path = module_file(module, root)
    lines, tree = _parse(path, path.stat().st_mtime_ns)
    nodes: List[ast.AST] = [tree]
    for name in qualname.split('.'):
        nodes = [node for scope in nodes for node in _named(scope, name)]
    if not nodes:
        raise PatchError(f'{qualname} is not defined in {path}' +
                         _import_hint(tree, qualname.split('.')[0]))
    return '\n'.join(_text(node, lines) for node in nodes)


@functools.lru_cache(maxsize=None)
def _parse(path: Path, mtime_ns: int) -> Tuple[List[str], ast.Module]:
    """A file's lines and tree; with the time stamp, an edited file counts as another one."""
    with tokenize.open(path) as file:
        text = file.read()
    return text.split('\n'), ast.parse(text, str(path))


def _named(scope: ast.AST, name: str) -> List[ast.AST]:
    """The definitions of `name` directly in a module or class, also inside `if` and `try`."""
    found: List[ast.AST] = []
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _DEFINITIONS):
            found += [node] if node.name == name else []
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [node] if name in names else []
        elif isinstance(node, _BLOCKS):
            found += _named(node, name)
    return found


def _text(node: ast.AST, lines: List[str]) -> str:
    decorators = getattr(node, 'decorator_list', [])
    first = min([node.lineno] + [decorator.lineno for decorator in decorators])
    return textwrap.dedent('\n'.join(lines[first - 1:node.end_lineno]))


def _import_hint(tree: ast.Module, name: str) -> str:
    """Where a name that a module only imports comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in [a.asname or a.name for a in node.names]:
            origin = '.' * node.level + (node.module or '')
            return f'; it is imported there from {origin}: name the defining module'
    return ''
