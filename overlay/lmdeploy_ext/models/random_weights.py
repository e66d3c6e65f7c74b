"""Random weights: activations stay finite in fp16, different inputs give different answers."""
import math
from typing import Dict, Iterator, List, Tuple

import torch

from .configuration import InternVLChatConfig
from .internvl import InternVLChatModel

EMBEDDINGS = ('embed_tokens.weight', 'tok_embeddings.weight')
POSITIONS = ('class_embedding', 'position_embedding')
# The last matrix of each residual branch.
BRANCH_ENDS = ('.o_proj.weight', '.wo.weight', '.down_proj.weight', '.w2.weight',
               '.attn.proj.weight', '.fc2.weight')


def tensor_shapes(config: InternVLChatConfig) -> Dict[str, torch.Size]:
    """Name and shape of each tensor of a checkpoint, in the model's order; no memory is used."""
    with torch.device('meta'):
        model = InternVLChatModel(config)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _scale(name: str, shape: torch.Size, layers: int) -> Tuple[float, float]:
    """Mean and standard deviation of a tensor's values.

    Matrices keep the variance of what they multiply; branch ends divide it by the number of
    branches, so that the residual stream stays near 1 however deep the model is.
    """
    if name.endswith(EMBEDDINGS):
        return 0.0, 1.0
    if name.endswith(POSITIONS):
        return 0.0, 0.5
    if len(shape) == 1:  # biases; weights of norms; layer scales
        return (0.0, 0.02) if name.endswith('.bias') else (1.0, 0.1)
    fan_in = shape[1:].numel()
    branches = 2 * layers if name.endswith(BRANCH_ENDS) else 1
    return 0.0, 1 / math.sqrt(fan_in * branches)


def random_tensors(config: InternVLChatConfig, shapes: Dict[str, torch.Size], seed: int,
                   device: torch.device, dtype: torch.dtype) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tensors of `shapes` one by one, drawn in fp32 on `device`, then rounded to `dtype`.

    The same seed gives the same values on the same kind of device only.
    """
    generator = torch.Generator(device).manual_seed(seed)
    depth = {
        'vision_model': config.vision_config.num_hidden_layers,
        'language_model': config.llm_config.num_hidden_layers
    }
    for name, shape in shapes.items():
        mean, std = _scale(name, shape, depth.get(name.split('.')[0], 1))
        tensor = torch.empty(shape, device=device, dtype=torch.float32)
        yield name, tensor.normal_(mean, std, generator=generator).to(dtype)


def plan_shards(shapes: Dict[str, torch.Size], item_size: int,
                shard_bytes: int) -> List[List[str]]:
    """Names of the tensors of each file, in order: at most `shard_bytes` of them, or one."""
    shards: List[List[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        size = shape.numel() * item_size
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards
