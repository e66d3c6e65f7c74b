"""How many tokens TurboMind's KV blocks hold: it says so in its log only, so here are bounds."""
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KvCapacity:
    """Tokens.

    Attributes:
        most: the blocks do not hold more.
        least: nor, by an estimate on the safe side, fewer.
    """
    most: int
    least: int


def kv_capacity(model_config: Any, engine_config: Any, item_bytes: int, free_bytes: int,
                total_bytes: int) -> KvCapacity:
    """Bounds for an engine on one GPU.

    Args:
        model_config: TurboMind's `ModelConfig`: layers, KV heads and their size.
        engine_config: `TurbomindEngineConfig`: `cache_max_entry_count` is the blocks' share of the
            memory that is free when the engine is made, or from 1 on, the number of blocks.
        item_bytes: of a number that is not quantised.
        free_bytes: on the GPU, with the weights in it and no KV blocks yet.
        total_bytes: of the GPU.
    """
    share = engine_config.cache_max_entry_count
    if share >= 1:
        tokens = int(share) * engine_config.cache_block_seq_len
        return KvCapacity(tokens, tokens)
    bits = engine_config.quant_policy or 8 * item_bytes
    token_bits = 2 * model_config.num_layer * model_config.kv_head_num * \
        model_config.size_per_head * bits
    # half: buffers of the engine are made before the blocks, and blocks have a few more bytes
    return KvCapacity(int(8 * share * total_bytes / token_bits),
                      int(8 * share * free_bytes / 2 / token_bits))
