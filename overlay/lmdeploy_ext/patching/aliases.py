"""Names that other modules copied with `from x import y`.

They are found by identity, so nothing is listed by hand, and undoing is the same search the other
way round.
"""
import sys
from types import ModuleType
from typing import Any, Dict, Iterable, Iterator, Tuple

OURS = 'lmdeploy'  # and so `lmdeploy_ext`


def rebind(pairs: Iterable[Tuple[Any, Any]], everywhere: bool) -> None:
    """Make every name that is bound to the first object of a pair name the second one.

    Looks at the globals of loaded modules and at the attributes of classes that LMDeploy defines.

    Args:
        pairs: (old, new) objects.
        everywhere: look into the modules of users, too, and into a notebook's `__main__`.
    """
    new_by_id = {id(old): new for old, new in pairs}
    for module in _modules(everywhere):
        ours = module.__name__.startswith(OURS)
        for name, value in list(vars(module).items()):
            if id(value) in new_by_id:
                setattr(module, name, new_by_id[id(value)])
            elif ours and _is_class(value) and value.__module__ == module.__name__:
                _rebind_in_class(value, new_by_id)


def _modules(everywhere: bool) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and (everywhere or name.startswith(OURS)):
            yield module


def _rebind_in_class(owner: type, new_by_id: Dict[int, Any]) -> None:
    for name, value in list(vars(owner).items()):
        if id(value) in new_by_id:
            setattr(owner, name, new_by_id[id(value)])
        elif _is_class(value) and value.__qualname__ == f'{owner.__qualname__}.{name}':
            _rebind_in_class(value, new_by_id)


def _is_class(value: Any) -> bool:
    # `isinstance` would ask `value.__class__`, where a user's lazy proxy may raise
    return issubclass(type(value), type)
