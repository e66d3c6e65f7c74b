"""Copies of upstream functions with the device rewritten.

Upstream's engine names `torch.cuda` in the middle of long methods that differ between releases. A
copy of such a method would hide upstream's next change; the method's own source, rewritten by
rule, follows it, and the patch's fingerprint says which source that is. Nothing global is changed:
users of a GPU run the original.
"""
import ast
import inspect
import types
from dataclasses import dataclass
from typing import Any, Callable, FrozenSet, List, Mapping, Optional, Tuple

from . import runtime

RUNTIME = 'lmdeploy_ext_cpu_runtime'
Rewrite = Callable[[ast.AST], Optional[ast.AST]]


class RetargetError(RuntimeError):
    """An upstream function has a form that the rules do not cover."""


@dataclass(frozen=True)
class Rules:
    """How a function is rewritten.

    Attributes:
        words: names and strings that must be gone afterwards.
        rewrites: tried in order at each node of the syntax tree, innermost first; each returns
            what takes the node's place, or None where the node is none of its business.
    """
    words: FrozenSet[str]
    rewrites: Tuple[Rewrite, ...]


def _is_torch(node: ast.AST, *names: str) -> bool:
    """Whether the node is `torch.name`."""
    return (isinstance(node, ast.Attribute) and node.attr in names
            and isinstance(node.value, ast.Name) and node.value.id == 'torch')


def _is_method_call(node: ast.AST, name: str) -> bool:
    """Whether the node is `something.name()`."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and node.func.attr == name and not node.args and not node.keywords)


def _cuda_module(node: ast.AST) -> Optional[ast.AST]:
    """`torch.cuda` -> the CPU runtime."""
    return ast.Name(RUNTIME, ast.Load()) if _is_torch(node, 'cuda') else None


def _cuda_transfer(node: ast.AST) -> Optional[ast.AST]:
    """`x.cuda()` -> `x`."""
    return node.func.value if _is_method_call(node, 'cuda') else None


def _cuda_name(node: ast.AST) -> Optional[ast.AST]:
    """`'cuda'` -> `'cpu'`."""
    return ast.Constant('cpu') if isinstance(node, ast.Constant) and node.value == 'cuda' else None


def _half_dtype(node: ast.AST) -> Optional[ast.AST]:
    """`torch.half`, `torch.float16` -> `torch.float32`."""
    if _is_torch(node, 'half', 'float16'):
        return ast.Attribute(node.value, 'float32', ast.Load())
    return None


def _half_cast(node: ast.AST) -> Optional[ast.AST]:
    """`x.half()` -> `x.float()`."""
    if _is_method_call(node, 'half'):
        return ast.Call(ast.Attribute(node.func.value, 'float', ast.Load()), [], [])
    return None


TO_CPU = Rules(frozenset({'cuda'}), (_cuda_module, _cuda_transfer, _cuda_name))
TO_FP32 = Rules(frozenset({'half', 'float16'}), (_half_dtype, _half_cast))


def retarget(function: types.FunctionType,
             rules: Rules,
             names: Optional[Mapping[str, Any]] = None) -> Callable:
    """A copy of `function`, rewritten by `rules`.

    The copy reads the globals of the function's own module as they are when it runs, has its
    decorators, its class-private names and, in tracebacks, its file and lines.

    Args:
        function: a plain function or method, decorated or not, whose source is at hand.
        rules: what to rewrite.
        names: objects that the copy sees in place of the module's globals of these names.

    Raises:
        RetargetError: there is nothing to rewrite, something is left over, the function closes
            over variables (which a copy cannot share), or a name of `names` does not occur.
    """
    plain = inspect.unwrap(function)
    if plain.__closure__ or '<locals>' in plain.__qualname__:
        raise RetargetError(f'{plain.__qualname__} is defined inside a function or uses super(); '
                            f'a copy cannot share what it closes over')
    node, owner = _parse(plain)
    names = names or {}
    missing = set(names) - {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    if missing:
        raise RetargetError(f'{plain.__qualname__} does not use {", ".join(sorted(missing))}; '
                            f'nothing would be replaced')
    rewriter = _Rewriter(rules)
    node = rewriter.rewrite(node, plain.__qualname__)
    if not rewriter.sites and not names:
        raise RetargetError(f'{plain.__qualname__} names none of '
                            f'{", ".join(sorted(rules.words))}; run the original')
    copy = _compile(node, owner, plain, {RUNTIME: runtime, **names})
    copy.__qualname__, copy.__module__ = plain.__qualname__, plain.__module__
    return copy


def _parse(plain: types.FunctionType) -> Tuple[ast.AST, Optional[str]]:
    """The function's definition, placed as in its file, and the name of its class, if any."""
    lines, first = inspect.getsourcelines(plain)
    *_, owner, _ = [None, *plain.__qualname__.split('.')]
    header = f'class {owner}:\n' if owner else '\n'
    tree = ast.parse(header + ''.join(lines))
    ast.increment_lineno(tree, first - 2)
    return (tree.body[0].body[0] if owner else tree.body[0]), owner


def _compile(node: ast.AST, owner: Optional[str], plain: types.FunctionType,
             bindings: Mapping[str, Any]) -> Callable:
    """Define the function inside a factory whose parameters are the bindings.

    As closure variables they stand before the module's globals without being written there.
    """
    body: List[ast.stmt] = [node]
    if owner:
        body = [ast.ClassDef(name=owner, bases=[], keywords=[], body=body, decorator_list=[],
                             type_params=[])]
    result = f'{owner}.{plain.__name__}' if owner else plain.__name__
    factory = ast.parse(f'def factory({", ".join(bindings)}):\n  return {result}')
    factory.body[0].body[:0] = body
    ast.fix_missing_locations(factory)
    code = compile(factory, plain.__code__.co_filename, 'exec', dont_inherit=True)
    scope: dict = {}
    exec(code, plain.__globals__, scope)
    return scope['factory'](**bindings)


class _Rewriter(ast.NodeTransformer):
    """Applies the rules, and makes sure that they were all it took."""

    def __init__(self, rules: Rules):
        self.rules = rules
        self.sites = 0

    def rewrite(self, node: ast.AST, name: str) -> ast.AST:
        """The rewritten definition of the function `name`."""
        node = self.visit(node)
        for left in ast.walk(node):
            if self.rules.words.intersection(_words(left)):
                raise RetargetError(f'{name} still names {_words(left)[0]} in line {left.lineno} '
                                    f'of its file; add a rule')
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        for rewrite in self.rules.rewrites:
            new = rewrite(node)
            if new is not None:
                self.sites += 1
                return ast.copy_location(new, node)
        return node


def _words(node: ast.AST) -> Tuple[Any, ...]:
    """The names and strings that a node itself holds."""
    if isinstance(node, ast.Attribute):
        return (node.attr, )
    if isinstance(node, ast.Name):
        return (node.id, )
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value, )
    return ()
