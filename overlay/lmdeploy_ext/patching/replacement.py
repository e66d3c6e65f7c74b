"""Check that a replacement fits what it replaces, and make it look like it."""
import functools
import inspect
from typing import Any, Callable

from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.errors import PatchError

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def finish_function(patch: Patch, original: Callable, replacement: Any) -> Callable:
    """The replacement of a function with the original's name, docstring and `__wrapped__`.

    Upstream asks for the signature of some functions, so it stays true: the original's, or the
    replacement's own where the patch declares a change.

    Raises:
        PatchError: it is no function, or differs in parameters or kind without saying so.
    """
    if replacement is original or not inspect.isroutine(replacement):
        raise PatchError(f'patch {patch.name}: returned {_describe(original, replacement)}; '
                         f'return a new function')
    # stop at the original: the author may have used `functools.wraps` already
    own = inspect.unwrap(replacement, stop=lambda f: getattr(f, '__wrapped__', None) is original)
    signature = inspect.signature(own, follow_wrapped=False)
    if patch.signature_change is None:
        _require_same_kind(patch, inspect.unwrap(original), own)
        _require_same_parameters(patch, inspect.signature(original), signature)
    functools.update_wrapper(replacement, original)
    if patch.signature_change is not None:
        replacement.__signature__ = signature
    return replacement


def finish_class(patch: Patch, original: type, replacement: Any) -> type:
    """The replacement of a class with the original's name, so that it is pickled by that name.

    Raises:
        PatchError: it is no other class, or something inherits from the original already.
    """
    if replacement is original or not isinstance(replacement, type):
        raise PatchError(f'patch {patch.name}: returned {_describe(original, replacement)}; '
                         f'return a new class')
    heirs = [heir for heir in original.__subclasses__() if not issubclass(replacement, heir)]
    if heirs:
        heir = f'{heirs[0].__module__}.{heirs[0].__qualname__}'
        raise PatchError(f'patch {patch.name}: {heir} already inherits from {patch.target} and '
                         f'would stay unpatched; patch methods instead')
    replacement.__module__ = original.__module__
    replacement.__name__ = original.__name__
    replacement.__qualname__ = original.__qualname__
    if replacement.__doc__ is None:
        replacement.__doc__ = original.__doc__
    return replacement


def _describe(original: Any, replacement: Any) -> str:
    return 'the original' if replacement is original else f'a {type(replacement).__name__}'


def _require_same_kind(patch: Patch, original: Callable, replacement: Callable) -> None:
    expected, found = _kind(original), _kind(replacement)
    if found != expected:
        raise PatchError(f'patch {patch.name}: the replacement is {found}, {patch.target} is '
                         f'{expected}; keep it, or give signature_change a reason')


def _kind(function: Callable) -> str:
    if inspect.iscoroutinefunction(function):
        return 'a coroutine function'
    if inspect.isasyncgenfunction(function):
        return 'an async generator'
    return 'a plain function'


def _require_same_parameters(patch: Patch, original: inspect.Signature,
                             replacement: inspect.Signature) -> None:
    expected, found = _shape(original), _shape(replacement)
    if found == expected:
        return
    # a wrapper that names the first parameters and passes the rest on takes whatever is passed
    kinds = tuple(parameter.kind for parameter in list(replacement.parameters.values())[-2:])
    if kinds == _VARIADIC and found[:-2] == expected[:len(found) - 2]:
        return
    raise PatchError(f'patch {patch.name}: the replacement takes {_text(replacement)}, '
                     f'{patch.target} takes {_text(original)}; keep the parameters, or give '
                     f'signature_change a reason')


def _shape(signature: inspect.Signature) -> list:
    """Name, kind and default of each parameter; annotations may differ."""
    return [(p.name, p.kind, _default(p.default)) for p in signature.parameters.values()]


def _default(value: Any) -> Any:
    """Defaults are compared by type and text: `float('nan')` equals nothing, arrays raise."""
    return type(value), repr(value)


def _text(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
