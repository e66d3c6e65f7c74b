"""Whether an engine in this process may cache prefixes of prompts with images."""
from lmdeploy_ext import patching

from .errors import EngineError

_PATCH = 'block_trie_match'


def prefix_caching_is_safe() -> bool:
    """Whether no engine of this process answers from the cache about another image."""
    states = {row['name']: row['state'] for row in patching.status()}
    return states[_PATCH] in ('ready', 'applied')


def check_prefix_caching(model: str, backend: str, device: str) -> None:
    """Check that it is not upstream's own PyTorch engine that is to cache prefixes.

    Args:
        model, backend, device: as in `PipelineSettings`.

    Raises:
        EngineError: it is.
    """
    from lmdeploy.archs import autoget_backend
    if prefix_caching_is_safe():
        return
    if 'pytorch' in (backend, autoget_backend(model)) or device == 'cpu':
        raise EngineError(f'prefix caching without the patch {_PATCH}: LMDeploy\'s PyTorch engine '
                          f'would answer about other images; select the patch in '
                          f'LMDEPLOY_EXT_PATCHES, or leave prefix caching off')
