"""The model and its KV cache on the CPU: what the engine calls its model agent."""
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, List, Tuple

import numpy as np
import torch
from lmdeploy.pytorch.backends import get_backend
from lmdeploy.pytorch.config import BackendConfig, CacheConfig, ModelConfig
from lmdeploy.pytorch.devices import DeviceContext, get_device_manager
from lmdeploy.pytorch.engine.model_agent import AutoModelAgent, BaseModelAgent, model_forward
from transformers import AutoConfig

from lmdeploy_ext.config import Settings

from . import runtime
from .limits import refuse_unsupported_model
from .memory import count_blocks
from .retarget import TO_CPU, retarget

logger = logging.getLogger(__name__)
_forward = retarget(model_forward, TO_CPU)


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers; takes the place of upstream's `CacheEngine`.

    Attributes:
        cache_config: upstream's, with the number of blocks that were allocated.
        model_config: upstream's.
        gpu_cache: for each layer, keys and values, [blocks, block_size, kv heads, head_dim]. The
            name is upstream's.
    """
    cache_config: CacheConfig
    model_config: ModelConfig
    gpu_cache: List[Tuple[torch.Tensor, torch.Tensor]]

    @property
    def local_gpu_cache(self) -> List[Tuple[torch.Tensor, torch.Tensor]]:
        """The part of this process, which is all of it."""
        return self.gpu_cache

    @classmethod
    def allocate(cls, cache_config: CacheConfig, model_config: ModelConfig,
                 settings: Settings) -> 'KVCache':
        """Choose the number of blocks, unless the user did, and allocate them.

        A sliding window is left to the attention: `cache_config.window_size` would make upstream
        drop blocks, too many of them where a block is smaller than what it allocates ahead.

        Raises:
            RuntimeError: the memory holds less than 16 blocks.
        """
        shapes = block_shapes(cache_config, model_config)
        if cache_config.num_gpu_blocks == 0:
            values = sum(int(np.prod(shape)) for shape in shapes)
            block_bytes = model_config.num_layers * values * model_config.dtype.itemsize
            cache_config.num_gpu_blocks = count_blocks(block_bytes, settings)
        layers = [tuple(_zeros(cache_config.num_gpu_blocks, shape) for shape in shapes)
                  for _ in range(model_config.num_layers)]
        return cls(cache_config, model_config, layers)


def block_shapes(cache_config: CacheConfig, model_config: ModelConfig) -> List[Tuple[int, ...]]:
    """Shapes of a block of keys and of a block of values of one layer."""
    backend, heads = get_backend(), model_config.num_key_value_heads
    return [shape(cache_config.block_size, heads, head_dim, model_config.dtype)
            for shape, head_dim in ((backend.get_k_block_shape, model_config.k_head_dim),
                                    (backend.get_v_block_shape, model_config.v_head_dim))]


def _zeros(num_blocks: int, shape: Tuple[int, ...]) -> torch.Tensor:
    """Zeros, since a masked slot counts 0 times its value, and 0 times NaN is NaN.

    From numpy, since it leaves the zeroing to the operating system, which gives out a page when it
    is first used: `torch.zeros` would write 4 GiB at the start.
    """
    return torch.from_numpy(np.zeros((num_blocks, *shape), np.float32))


class CpuModelAgent(BaseModelAgent):
    """Loads the model in float32 and runs it in a thread of its own.

    Args:
        model_path: folder of the checkpoint.
        model_config: of that checkpoint, its dtype already float32.
        cache_config: how to page the KV cache; the number of blocks is filled in.
        backend_config: passed to upstream's graph runner.
        settings: limits of this process.
    """

    def __init__(self, model_path: str, model_config: ModelConfig, cache_config: CacheConfig,
                 backend_config: BackendConfig, settings: Settings):
        AutoModelAgent.__init__(self, model_config, cache_config)
        self.backend_config = backend_config
        model = self._build_model(model_path, device='cpu')
        self.cache_engine = KVCache.allocate(cache_config, model_config, settings)
        self.patched_model = get_backend().build_graph_runner(model,
                                                              model_config=model_config,
                                                              cache_config=cache_config,
                                                              backend_config=backend_config,
                                                              device='cpu')
        self.stream = runtime.Stream()
        # upstream keeps the device in a thread-local variable
        self._executor = ThreadPoolExecutor(max_workers=1,
                                            thread_name_prefix='lmdeploy-ext-llm',
                                            initializer=get_device_manager().set_context,
                                            initargs=(DeviceContext('cpu'), ))

    async def async_logits(self, inputs: Any, all_positions: bool) -> torch.Tensor:
        """Logits of a batch, computed off the event loop, which goes on serving HTTP and images.

        Args:
            inputs: upstream's `ModelInputs`.
            all_positions: logits of every token, not of each sequence's last one.

        Returns:
            [1, tokens or sequences, vocabulary] float32.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.logits, inputs, all_positions)

    def logits(self, inputs: Any, all_positions: bool) -> torch.Tensor:
        """What `async_logits` returns, computed in this thread."""
        limit = self.cache_config.max_prefill_token_num
        chunks = [inputs]
        if inputs.input_ids.numel() > limit:  # then it is one sequence
            chunks = inputs.split(limit, self.cache_config.block_size)
        outputs = []  # of each chunk [1, tokens or sequences, vocabulary or hidden]
        for chunk in chunks:
            output = _forward(self.patched_model, chunk, self.cache_engine, world_size=1)
            is_hidden = 'hidden_states' in output  # since 0.6.1; before that logits
            values = output['hidden_states' if is_hidden else 'logits']
            if not all_positions and not inputs.is_decoding:
                values = values[:, chunk.seq_length.cumsum(0) - 1]
            outputs.append(values)
        values = torch.cat(outputs, 1) if all_positions else outputs[-1]
        with torch.no_grad():  # not inference_mode: upstream's sampling writes to the logits
            return (self.get_logits(values) if is_hidden else values).float()


def build_cpu_model_agent(model_path: str, cache_config: CacheConfig,
                          backend_config: BackendConfig, trust_remote_code: bool,
                          custom_module_map: Any = None) -> CpuModelAgent:
    """Load a checkpoint for the CPU, in float32 whatever dtype it has.

    Raises:
        UnsupportedOnCpu: the model needs a GPU.
        RuntimeError: there is no memory for the KV cache.
    """
    hf_config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    refuse_unsupported_model(hf_config)
    model_config = ModelConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    logger.info('%s is stored as %s; the CPU backend computes in torch.float32', model_path,
                hf_config.torch_dtype)
    model_config.dtype = model_config.hf_config.torch_dtype = torch.float32
    model_config.custom_module_map = custom_module_map
    return CpuModelAgent(model_path, model_config, cache_config, backend_config,
                         Settings.from_env())
