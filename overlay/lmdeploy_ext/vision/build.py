"""The vision service of a model that LMDeploy has loaded."""
import gc
from typing import Any, List, Optional

import torch

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vision.backend import VisionBackend
from lmdeploy_ext.vision.eager import EagerBackend
from lmdeploy_ext.vision.feature_cache import FeatureCache
from lmdeploy_ext.vision.features import DeviceBudget
from lmdeploy_ext.vision.figures import info_log
from lmdeploy_ext.vision.graph_pool import GraphBackend
from lmdeploy_ext.vision.model_key import model_key
from lmdeploy_ext.vision.replicas import ReplicatedBackend
from lmdeploy_ext.vision.service import VisionService
from lmdeploy_ext.vision.settings import VisionSettings
from lmdeploy_ext.vision.tile_scheduler import TileScheduler
from lmdeploy_ext.vision.upstream import UpstreamBackend
from lmdeploy_ext.vision.vit import InternViT
from lmdeploy_ext.vision.vit_weights import default_dtype, load_vit
from lmdeploy_ext.vl.internvl import loader_of


def build_service(vision: Any, engine_config: Any) -> Optional[VisionService]:
    """The service for upstream's `InternVLVisionModel`; its model's own tower is given up where
    another takes its place.

    Args:
        vision: the loaded model.
        engine_config: the `TurbomindEngineConfig` or `PytorchEngineConfig` of the language model.

    Returns:
        None where the model is not InternVL with dynamic tiles, or the settings say so.

    Raises:
        ValueError: the model's weights are not InternVL's, or cannot be used where they are.
    """
    loader = loader_of(vision)
    if loader is None:
        return None
    device = vision.model.device
    settings = VisionSettings.of(Settings.from_env(), device.type)
    if settings is None:
        return None
    tp = getattr(engine_config, 'tp', 1)
    try:
        backend = make_backend(vision.model, settings, _replica_devices(device, settings, tp))
        _check_side(backend.side, loader.side)
    except ValueError as error:
        raise ValueError(f'{error}; set LMDEPLOY_EXT_VISION=upstream for the checkpoint\'s own '
                         'code, or off for stock LMDeploy\'s encoder') from error
    key, keyed = b'', shares_images(engine_config)
    if settings.cache_bytes or keyed:
        key = model_key(vision.model, vision.config, settings.backend, backend.dtype)
    if settings.backend != 'upstream':
        give_up_tower(vision.model)
    on_gpu = device.type == 'cuda'
    device_results = on_gpu and takes_device_tensors(engine_config)
    scheduler = TileScheduler(backend, backend.max_tiles,
                              host_results=on_gpu and not device_results)
    info_log.info('vision: %s in %s on %s, up to %d tiles in a batch', settings.backend,
                  backend.dtype, device, backend.max_tiles)
    return VisionService(loader, scheduler, _cache(settings, pinned=on_gpu), key,
                         DeviceBudget(settings.waiting_bytes) if device_results else None,
                         settings.log_seconds, keyed)


def shares_images(engine_config: Any) -> bool:
    """Whether the language model's prefix cache knows images, by the keys of their features."""
    from lmdeploy.messages import PytorchEngineConfig
    knows_images = isinstance(engine_config, PytorchEngineConfig) or has_virtual_tokens(
        engine_config)
    return (knows_images and engine_config.enable_prefix_caching
            and Settings.from_env().prefix_cache == 'content')


def make_backend(model: torch.nn.Module, settings: VisionSettings,
                 devices: List[torch.device]) -> VisionBackend:
    """What encodes tiles with a model's weights, one replica on each device."""
    if settings.backend == 'upstream':
        return UpstreamBackend(model, settings.batch_tiles)
    dtype = default_dtype(model.config, devices[0])
    if settings.dtype:
        dtype = getattr(torch, settings.dtype)
    replicas = [_on_one_device(load_vit(model, device, dtype), settings) for device in devices]
    return replicas[0] if len(replicas) == 1 else ReplicatedBackend(replicas)


def _on_one_device(vit: InternViT, settings: VisionSettings) -> VisionBackend:
    if settings.backend == 'graphs':
        return GraphBackend(vit, settings.graph_sizes, settings.batch_tiles, settings.graph_bytes,
                            settings.graphs_lazy)
    return EagerBackend(vit, settings.batch_tiles, compiled=settings.backend == 'compile')


def give_up_tower(model: torch.nn.Module) -> None:
    """Free a model's vision tower and projector, which another module computes from now on."""
    # what is left has the weights that it shares with the other one, or none
    model.vision_model = model.mlp1 = torch.nn.Identity()
    gc.collect()  # where it was spread over GPUs, accelerate's hooks hold its modules in cycles
    torch.cuda.empty_cache()  # the engines take what the driver calls free; without CUDA nothing


def takes_device_tensors(engine_config: Any) -> bool:
    """Whether an engine reads features where the vision model leaves them. TurboMind's C++ reads
    host memory but for virtual tokens, and the PyTorch engine sends them to other processes where
    it has several."""
    from lmdeploy.messages import PytorchEngineConfig
    if isinstance(engine_config, PytorchEngineConfig):
        return engine_config.tp == 1
    return has_virtual_tokens(engine_config)


def has_virtual_tokens(engine_config: Any) -> bool:
    """Whether TurboMind is to have virtual tokens; where it gets none after all, its streams copy
    features to host memory."""
    from lmdeploy.messages import TurbomindEngineConfig
    if not (isinstance(engine_config, TurbomindEngineConfig) and engine_config.tp == 1
            and engine_config.enable_prefix_caching
            and Settings.from_env().prefix_cache != 'off'):
        return False
    # its library needs a GPU's driver, so it is imported late
    from lmdeploy.turbomind.turbomind import TurboMindInstance
    return getattr(TurboMindInstance.async_stream_infer, 'takes_device_features', False)


def _check_side(of_tower: int, of_tiles: int) -> None:
    if of_tower != of_tiles:
        raise ValueError(f'the vision tower takes tiles of {of_tower} pixels (force_image_size), '
                         f'but images are cut to {of_tiles} (vision_config.image_size)')


def _cache(settings: VisionSettings, pinned: bool) -> Optional[FeatureCache]:
    if not settings.cache_bytes:
        return None
    return FeatureCache(settings.cache_bytes, settings.cache_seconds, settings.cache_host_bytes,
                        pinned)


def _replica_devices(device: torch.device, settings: VisionSettings,
                     tp: int) -> List[torch.device]:
    """The model's device, and the next ones of the language model's for replicas."""
    if device.type != 'cuda':
        return [device]
    wanted = min(settings.replicas or tp, torch.cuda.device_count())
    others = [torch.device('cuda', index) for index in range(torch.cuda.device_count())
              if index != device.index]
    return [device, *others[:wanted - 1]]
