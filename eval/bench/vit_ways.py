"""The ways to encode tiles that `bench-vit` compares; all of them from the same weights."""
import difflib
import math
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from lmdeploy_ext.vision.backend import VisionBackend, run
from lmdeploy_ext.vision.eager import EagerBackend
from lmdeploy_ext.vision.graph_pool import BUCKETS, GraphBackend
from lmdeploy_ext.vision.replicas import ReplicatedBackend
from lmdeploy_ext.vision.upstream import UpstreamBackend
from lmdeploy_ext.vision.vit_weights import load_vit

from ..errors import EvalError
from .vit_model import vision_model, with_sdpa

STOCK, SDPA, EAGER, GRAPHS = 'stock', 'sdpa', 'eager', 'graphs'
COMPILE, COMPILED_GRAPHS, REPLICAS = 'compile', 'compiled-graphs', 'replicas'
TITLES = {
    STOCK: 'stock: attention written out',
    SDPA: 'stock with SDPA',
    EAGER: 'ours',
    GRAPHS: 'ours, CUDA graphs',
    COMPILE: 'ours, torch.compile',
    COMPILED_GRAPHS: 'ours, compiled, CUDA graphs',
    REPLICAS: 'ours, CUDA graphs, on all GPUs',
}
GRAPH_BYTES = 4 << 30  # far above what they take: that is measured here
MIB = 1 << 20


def possible(devices: Sequence[torch.device]) -> List[str]:
    """The ways that there are on these devices."""
    if devices[0].type != 'cuda':
        return [STOCK, SDPA, EAGER, COMPILE]
    return [name for name in TITLES if name != REPLICAS or len(devices) > 1]


def chosen(names: Optional[Sequence[str]], devices: Sequence[torch.device]) -> List[str]:
    """The ways to measure: all that there are, or stock and those named.

    Raises:
        EvalError: an unknown way, or one that these devices do not have.
    """
    there_are = possible(devices)
    if names is None:
        return there_are
    for name in names:
        if name not in TITLES:
            near = difflib.get_close_matches(name, TITLES, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise EvalError(f"no way {name!r}; there are {', '.join(TITLES)}{hint}")
        if name not in there_are:
            raise EvalError(f"the way {name!r} is not there on {len(devices)} device(s) of type "
                            f"{devices[0].type}; there are {', '.join(there_are)}")
    return [name for name in there_are if name == STOCK or name in names]


def build(names: Sequence[str], shape: str, devices: Sequence[torch.device], dtype: torch.dtype,
          most: int) -> Tuple[Dict[str, VisionBackend], List[Dict[str, Any]]]:
    """The ways' backends for batches of at most `most` tiles.

    Returns:
        backends by name, and a row for each that has graphs or could not be built.
    """
    model = vision_model(shape, devices[0], dtype)
    vits = [load_vit(model, device, dtype) for device in devices]
    makers: Dict[str, Callable[[], VisionBackend]] = {
        STOCK: lambda: UpstreamBackend(model, most),
        SDPA: lambda: UpstreamBackend(with_sdpa(model), most),
        EAGER: lambda: EagerBackend(vits[0], most),
        GRAPHS: lambda: _graphs(vits[0], most),
        COMPILE: lambda: EagerBackend(vits[0], most, compiled=True),
        COMPILED_GRAPHS: lambda: _graphs(torch.compile(vits[0]), most),
        REPLICAS: lambda: ReplicatedBackend([_graphs(vit, math.ceil(most / len(vits)))
                                             for vit in vits]),
    }
    backends, rows = {}, []
    for name in names:
        free = _free_bytes(devices[0])
        try:
            backend = _tried(makers[name]())
        except RuntimeError as error:  # of a compiler that is missing or fails, for the most part
            rows.append({'part': 'left out', 'way': name,
                         'reason': str(error).strip().splitlines()[0]})
            continue
        backends[name] = backend
        if isinstance(backend, GraphBackend):
            rows.append(_graph_row(name, backend, free))
    return backends, rows


def _graphs(vit: torch.nn.Module, most: int) -> GraphBackend:
    return GraphBackend(vit, BUCKETS, most, GRAPH_BYTES, lazily=False)


def _tried(backend: VisionBackend) -> VisionBackend:
    """The backend after one tile and two, which are compiled apart."""
    for tiles in range(1, 1 + min(2, backend.max_tiles)):
        run(backend, torch.zeros((tiles, backend.side, backend.side, 3), dtype=torch.uint8,
                                 device=backend.device))
    return backend


def _free_bytes(device: torch.device) -> int:
    """Memory of a GPU that nobody has, torch's own cache emptied; 0 on a CPU."""
    if device.type != 'cuda':
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _graph_row(name: str, backend: GraphBackend, free_before: int) -> Dict[str, Any]:
    """What the graphs of a way hold: counted, and by what is missing on the device, in which are
    the driver's own records, kernels loaded first by this way, and what other processes took."""
    figures = asdict(backend.figures())
    return {
        'part': 'graphs',
        'way': name,
        'graphs': figures['graphs'],
        'given_up': figures['given_up'],
        'mib': round(figures['bytes'] / MIB, 1),
        'device_mib': round((free_before - _free_bytes(backend.device)) / MIB, 1),
        'capture_seconds': round(figures['capture_seconds'], 2)
    }
