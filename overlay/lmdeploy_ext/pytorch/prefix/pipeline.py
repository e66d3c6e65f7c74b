"""`lmdeploy.pipeline` of 0.6.4 without its refusal to cache prefixes of models that see images."""
import ast
from typing import Callable, Optional

from ..retarget import Rules, retarget


def _never(node: ast.AST) -> Optional[ast.AST]:
    """`task == 'vlm'` -> `False`: what only the refusal asks."""
    if (isinstance(node, ast.Compare) and isinstance(node.left, ast.Name)
            and isinstance(node.comparators[0], ast.Constant)
            and (node.left.id, node.comparators[0].value) == ('task', 'vlm')):
        return ast.Constant(False)
    return None


def without_refusal(pipeline: Callable) -> Callable:
    """A copy of upstream's function that leaves `enable_prefix_caching` as it is."""
    return retarget(pipeline, Rules(words=frozenset({'vlm'}), rewrites=(_never, )))
