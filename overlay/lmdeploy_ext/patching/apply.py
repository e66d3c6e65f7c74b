"""Put one replacement in the place of one upstream symbol, and back."""
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Callable, Iterator, Tuple, Union

from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.replacement import finish_class, finish_function
from lmdeploy_ext.patching.source import split_target


@dataclass(frozen=True)
class Applied:
    """A patch in force.

    Attributes:
        patch: what was applied.
        owner: the module or class whose attribute was replaced.
        attribute: the attribute's name.
        original: what its `__dict__` held, a descriptor where there is one.
        replacement: what it holds now.
    """
    patch: Patch
    owner: Union[ModuleType, type]
    attribute: str
    original: Any
    replacement: Any

    def stands_in(self, module: ModuleType) -> bool:
        """Whether the target in this module is the replacement: a reload makes a new owner."""
        owner: Any = module
        for name in split_target(self.patch.target)[1].split('.')[:-1]:
            owner = vars(owner).get(name)
        return owner is self.owner and self._in_place()

    def pairs(self) -> Iterator[Tuple[Any, Any]]:
        """(original, replacement) as others may have copied them: the object, and its function."""
        yield self.original, self.replacement
        if isinstance(self.original, (staticmethod, classmethod)):
            yield self.original.__func__, self.replacement.__func__

    def undo(self) -> None:
        """Put the original back, unless someone else has replaced the attribute since."""
        if self._in_place():
            setattr(self.owner, self.attribute, self.original)

    def _in_place(self) -> bool:
        return vars(self.owner).get(self.attribute) is self.replacement


def apply(patch: Patch, module: ModuleType) -> Applied:
    """Replace the patch's target in a module that has run.

    Raises:
        PatchError: the target is not there or of a kind that cannot be patched, or the replacement
            does not fit it.
    """
    owner, attribute = _resolve(patch, module)
    original = vars(owner)[attribute]
    function, wrap = _open(patch, original)
    finish = finish_class if isinstance(function, type) else finish_function
    replacement = wrap(finish(patch, function, patch(function)))
    setattr(owner, attribute, replacement)
    return Applied(patch, owner, attribute, original, replacement)


def _resolve(patch: Patch, module: ModuleType) -> Tuple[Union[ModuleType, type], str]:
    """The module or class that holds the target, and the target's name in it."""
    names = split_target(patch.target)[1].split('.')
    owner: Any = module
    for depth, name in enumerate(names):
        if name not in vars(owner):
            raise PatchError(f'patch {patch.name}: {patch.target} is in the source, but '
                             f'{".".join(names[:depth + 1])} is not there once the module has run')
        if depth < len(names) - 1:
            owner = vars(owner)[name]
    return owner, names[-1]


def _open(patch: Patch, original: Any) -> Tuple[Any, Callable[[Any], Any]]:
    """The function or class inside an attribute, and what makes an attribute of a new one."""
    if isinstance(original, (staticmethod, classmethod)):
        return original.__func__, type(original)
    if isinstance(original, property):
        return original.fget, original.getter
    if callable(original):
        return original, _identity
    raise PatchError(f'patch {patch.name}: {patch.target} is a {type(original).__name__}; '
                     f'functions, methods, properties and classes can be patched')


def _identity(replacement: Any) -> Any:
    return replacement
