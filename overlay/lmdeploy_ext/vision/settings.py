"""What this process's settings say about the vision encoder."""
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from lmdeploy_ext.config import Settings

_MIB = 1 << 20
# More tiles in a batch gain nothing: an H200 runs 52 of the 300M tower as fast, a tile, as 104; a
# CPU's caches hold the activations of a few.
_BATCH_TILES = {'cuda': 64, 'cpu': 4}


@dataclass(frozen=True)
class VisionSettings:
    """How tiles are encoded.

    Attributes:
        backend: `eager`, `graphs` (CUDA graphs, the default on a GPU), `compile` (torch.compile),
            or `upstream` (the checkpoint's own code, in the shared batches).
        dtype: torch's name of the weights' type; None for `vit.default_dtype`.
        batch_tiles: in a batch at most, of each replica.
        graph_sizes: batch sizes to capture.
        graph_bytes: of GPU memory for the graphs at most.
        graphs_lazy: capture a size when batches of it come, not all of them at the start.
        replicas: GPUs with a copy of the tower; None for as many as the language model is split
            over.
        cache_bytes, cache_seconds, cache_host_bytes: features that are kept, 0 for none; for how
            long, None for ever; and further ones in host memory.
        waiting_bytes: of features on the GPU that the language model has not taken yet; beyond
            it, they are moved to host memory.
        log_seconds: between two lines of figures in the log.
    """
    backend: str
    dtype: Optional[str] = None
    batch_tiles: int = _BATCH_TILES['cuda']
    graph_sizes: Tuple[int, ...] = tuple(range(1, 9))
    graph_bytes: int = 1024 * _MIB
    graphs_lazy: bool = False
    replicas: Optional[int] = None
    cache_bytes: int = 256 * _MIB
    cache_seconds: Optional[float] = None
    cache_host_bytes: int = 0
    waiting_bytes: int = 4096 * _MIB
    log_seconds: float = 60.0

    @classmethod
    def of(cls, settings: Settings, device_type: str) -> Optional['VisionSettings']:
        """The part of a process's settings that is about the vision encoder on a device.

        Args:
            device_type: `cuda` or `cpu`.

        Returns:
            None where the settings leave images to upstream's `ImageEncoder`.
        """
        if settings.vision == 'off':
            return None
        backend = settings.vision
        if backend == 'auto':
            backend = 'graphs' if device_type == 'cuda' else 'eager'
        given: Dict[str, Any] = dict(
            dtype=settings.vision_dtype,
            batch_tiles=settings.vision_batch_tiles or _BATCH_TILES.get(device_type),
            graph_sizes=settings.vision_graphs,
            graph_bytes=_bytes(settings.vision_graphs_mb),
            graphs_lazy=settings.vision_graphs_lazy,
            replicas=settings.vision_replicas,
            cache_bytes=_bytes(settings.feature_cache_mb),
            cache_seconds=settings.feature_cache_seconds,
            cache_host_bytes=_bytes(settings.feature_cache_host_mb),
            waiting_bytes=_bytes(settings.features_gpu_mb),
            log_seconds=settings.vision_log_seconds)
        return cls(backend, **{name: value for name, value in given.items() if value is not None})


def _bytes(mib: Optional[int]) -> Optional[int]:
    return None if mib is None else mib * _MIB
