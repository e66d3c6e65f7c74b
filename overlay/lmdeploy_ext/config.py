"""Every environment variable that lmdeploy-ext reads, in one place. Standard library only.

Command-line flags live in the scripts that define them; nothing else reads `os.environ`.
"""
import math
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

PREFIX = 'LMDEPLOY_EXT_'


class SettingError(ValueError):
    """A setting has a value that cannot be used; the message says which and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """Settings of one process.

    Attributes:
        patches: `LMDEPLOY_EXT_PATCHES`, which patches to apply: `all`, `none`, groups or names,
            comma separated, `-name` to leave one out.
        cpu_kv_gb: `LMDEPLOY_EXT_CPU_KV_GB`, GiB of memory for the KV cache of the CPU backend.
            Without it: half of the free memory, 4 GiB at most.
        cpu_threads: `LMDEPLOY_EXT_CPU_THREADS`, torch threads of the CPU backend. Without it:
            the cores that this process may use.
        prefix_cache: `LMDEPLOY_EXT_PREFIX_CACHE`, what an engine with `enable_prefix_caching`
            reuses: `content` (text and images), `text` (blocks before the first image) or `off`.
        tiles: `LMDEPLOY_EXT_TILES`, how images are cut: `native`, `stock` or `budget:N`.
        max_shrink, tile_fit, thumbnail_from: `LMDEPLOY_EXT_MAX_SHRINK`, `_TILE_FIT` (`auto`,
            `pad`, `crop` or `stretch`), `_THUMBNAIL_FROM`; see `vl.tiling.TilePolicy`, whose
            defaults hold.
        max_tiles: `LMDEPLOY_EXT_MAX_TILES`, a cap on the model's own `max_dynamic_patch`.
        pixels: `LMDEPLOY_EXT_PIXELS`, `fast`, or `upstream` for exactly its pixels.
        image_max_pixels, image_max_bytes, image_max_side, image_url_seconds,
        image_private_addresses, image_other_hosts: `LMDEPLOY_EXT_IMAGE_…`, what an image may be
            and where it may be fetched from; see `vl.image_limits.ImageLimits`, whose defaults
            hold. The last two are 0 or 1.
        image_workers: `LMDEPLOY_EXT_IMAGE_WORKERS`, threads that prepare images. Without it: the
            cores that this process may use.
        images_in_flight: `LMDEPLOY_EXT_IMAGES_IN_FLIGHT`, images at most that are being prepared,
            or are ready and wait for the vision model. Without it: 8 for each worker, at least 64.
        vision, vision_dtype, vision_batch_tiles, vision_graphs, vision_graphs_mb,
        vision_graphs_lazy, vision_replicas, vision_log_seconds: `LMDEPLOY_EXT_VISION…`, how tiles
            are encoded; see `vision.settings.VisionSettings`, whose defaults hold.
        feature_cache_mb, feature_cache_seconds, feature_cache_host_mb:
            `LMDEPLOY_EXT_FEATURE_CACHE_…`, features of images that are kept, MiB and seconds.
        features_gpu_mb: `LMDEPLOY_EXT_FEATURES_GPU_MB`, MiB of features that wait for the language
            model on the GPU at most; more of them wait in host memory.
        feature_pool_rows: `LMDEPLOY_EXT_FEATURE_POOL_ROWS`, rows of image features that token ids
            of TurboMind can name. Without it: see `turbomind.build.pool_slots`.
        feature_pool_full: `LMDEPLOY_EXT_FEATURE_POOL_FULL`, what a request without rows does:
            `wait`, or take the `stock` path.
    """
    patches: str = 'all'
    cpu_kv_gb: Optional[float] = None
    cpu_threads: Optional[int] = None
    tiles: str = 'native'
    max_shrink: Optional[float] = None
    tile_fit: Optional[str] = None
    thumbnail_from: Optional[int] = None
    max_tiles: Optional[int] = None
    pixels: str = 'fast'
    image_max_pixels: Optional[int] = None
    image_max_bytes: Optional[int] = None
    image_max_side: Optional[int] = None
    image_url_seconds: Optional[float] = None
    image_private_addresses: bool = False
    image_other_hosts: bool = False
    image_workers: Optional[int] = None
    images_in_flight: Optional[int] = None
    vision: str = 'auto'
    vision_dtype: Optional[str] = None
    vision_batch_tiles: Optional[int] = None
    vision_graphs: Optional[Tuple[int, ...]] = None
    vision_graphs_mb: Optional[int] = None
    vision_graphs_lazy: bool = False
    vision_replicas: Optional[int] = None
    vision_log_seconds: Optional[float] = None
    feature_pool_rows: Optional[int] = None
    feature_pool_full: str = 'wait'
    feature_cache_mb: Optional[int] = None
    feature_cache_seconds: Optional[float] = None
    feature_cache_host_mb: Optional[int] = None
    features_gpu_mb: Optional[int] = None
    prefix_cache: str = 'content'

    @classmethod
    def from_env(cls, env: Optional[Mapping[str, str]] = None) -> 'Settings':
        """Read the settings from `env` (default: this process's environment)."""
        env = os.environ if env is None else env
        return cls(patches=env.get(PREFIX + 'PATCHES', 'all'),
                   cpu_kv_gb=_positive(env, 'CPU_KV_GB', float),
                   cpu_threads=_positive(env, 'CPU_THREADS', int),
                   prefix_cache=_chosen(env, 'PREFIX_CACHE', 'content|text|off',
                                        'content, text or off') or 'content',
                   **_tile_settings(env),
                   **_image_settings(env),
                   **_vision_settings(env))


def api_key(env: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """`LMDEPLOY_EXT_API_KEY`, what an api_server asks of its clients; None where it is not set.

    Not one of the `Settings`: those are written to logs and results.
    """
    env = os.environ if env is None else env
    return env.get(PREFIX + 'API_KEY') or None


def _tile_settings(env: Mapping[str, str]) -> Dict[str, Any]:
    return dict(tiles=_chosen(env, 'TILES', r'native|stock|budget:[1-9]\d*',
                              'native, stock or budget:N (N image tokens a request)') or 'native',
                max_shrink=_positive(env, 'MAX_SHRINK', float, least=1),
                tile_fit=_chosen(env, 'TILE_FIT', 'auto|pad|crop|stretch',
                                 'auto, pad, crop or stretch'),
                thumbnail_from=_positive(env, 'THUMBNAIL_FROM', int, least=2),
                max_tiles=_positive(env, 'MAX_TILES', int),
                pixels=_chosen(env, 'PIXELS', 'fast|upstream', 'fast or upstream') or 'fast')


def _image_settings(env: Mapping[str, str]) -> Dict[str, Any]:
    return dict(image_max_pixels=_positive(env, 'IMAGE_MAX_PIXELS', int),
                image_max_bytes=_positive(env, 'IMAGE_MAX_BYTES', int),
                image_max_side=_positive(env, 'IMAGE_MAX_SIDE', int),
                image_url_seconds=_positive(env, 'IMAGE_URL_SECONDS', float),
                image_private_addresses=_switch(env, 'IMAGE_PRIVATE_ADDRESSES'),
                image_other_hosts=_switch(env, 'IMAGE_OTHER_HOSTS'),
                image_workers=_positive(env, 'IMAGE_WORKERS', int),
                images_in_flight=_positive(env, 'IMAGES_IN_FLIGHT', int))


def _vision_settings(env: Mapping[str, str]) -> Dict[str, Any]:
    return dict(vision=_chosen(env, 'VISION', 'auto|eager|graphs|compile|upstream|off',
                               'auto, eager, graphs, compile, upstream or off') or 'auto',
                vision_dtype=_chosen(env, 'VISION_DTYPE', 'float16|bfloat16|float32',
                                     'float16, bfloat16 or float32'),
                vision_batch_tiles=_positive(env, 'VISION_BATCH_TILES', int),
                vision_graphs=_sizes(env, 'VISION_GRAPHS'),
                vision_graphs_mb=_positive(env, 'VISION_GRAPHS_MB', int),
                vision_graphs_lazy=_switch(env, 'VISION_GRAPHS_LAZY'),
                vision_replicas=_positive(env, 'VISION_REPLICAS', int),
                vision_log_seconds=_positive(env, 'VISION_LOG_SECONDS', float),
                feature_cache_mb=_whole(env, 'FEATURE_CACHE_MB'),
                feature_cache_seconds=_positive(env, 'FEATURE_CACHE_SECONDS', float),
                feature_cache_host_mb=_whole(env, 'FEATURE_CACHE_HOST_MB'),
                features_gpu_mb=_whole(env, 'FEATURES_GPU_MB'),
                feature_pool_rows=_positive(env, 'FEATURE_POOL_ROWS', int),
                feature_pool_full=_chosen(env, 'FEATURE_POOL_FULL', 'wait|stock',
                                          'wait or stock') or 'wait')


def _whole(env: Mapping[str, str], name: str) -> Optional[int]:
    """The variable as a whole number from 0; None where it is not set."""
    text = _chosen(env, name, r'\d+', 'a whole number')
    return None if text is None else int(text)


def _sizes(env: Mapping[str, str], name: str) -> Optional[Tuple[int, ...]]:
    """The variable, a range or a list of sizes, in ascending order; None where it is not set."""
    text = _chosen(env, name, r'[1-9]\d{0,2}-[1-9]\d{0,2}|[1-9]\d{0,2}(,[1-9]\d{0,2})*',
                   'a range like 1-8 or a list like 1,2,4, up to 999')
    if text is None:
        return None
    low, dash, high = text.partition('-')
    if not dash:
        return tuple(sorted({int(size) for size in text.split(',')}))
    if int(low) > int(high):
        raise SettingError(f'{PREFIX}{name}={text!r} is empty; give the smaller size first')
    return tuple(range(int(low), int(high) + 1))


def _chosen(env: Mapping[str, str], name: str, pattern: str, expected: str) -> Optional[str]:
    """The variable's value, which matches `pattern`, or None where it is not set."""
    text = env.get(PREFIX + name, '').strip()
    if text and not re.fullmatch(pattern, text):
        raise SettingError(f'{PREFIX}{name}={text!r} is not {expected}; '
                           f'set it to one of them, or unset it for the default')
    return text or None


def _switch(env: Mapping[str, str], name: str) -> bool:
    return _chosen(env, name, '[01]', '0 or 1') == '1'


def _positive(env: Mapping[str, str], name: str, kind: type, least: float = 0):
    """The variable as a positive number, at least `least`; None where it is not set."""
    text = env.get(PREFIX + name, '').strip()
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise SettingError(f'{PREFIX}{name}={text!r} is not a positive {kind.__name__}; '
                           f'set it to one, or unset it for the default')
    if value < least:
        raise SettingError(f'{PREFIX}{name}={text!r} is less than {least:g}; '
                           f'set it to {least:g} or more, or unset it for the default')
    return value
