"""Virtual tokens for an engine that LMDeploy has made, or the reason why not."""
import logging
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

import torch

from lmdeploy_ext.config import Settings
from lmdeploy_ext.turbomind.cuda_memory import MappedMemory
from lmdeploy_ext.turbomind.feature_pool import CudaRowWriter, FeaturePool
from lmdeploy_ext.turbomind.generations import wraps_in_time
from lmdeploy_ext.turbomind.kv_capacity import kv_capacity
from lmdeploy_ext.turbomind.kv_load import KvLoad
from lmdeploy_ext.turbomind.pool_rows import PoolRows
from lmdeploy_ext.turbomind.prefix_gate import PrefixGate
from lmdeploy_ext.turbomind.row_queue import RowQueue
from lmdeploy_ext.turbomind.self_test import SelfTestFailed, check_virtual_tokens
from lmdeploy_ext.turbomind.virtual_ids import EmbeddingTable, NoPlace, virtual_ids
from lmdeploy_ext.turbomind.virtual_tokens import VirtualTokens

logger = logging.getLogger(__name__)
_SLOT_ROWS = 256  # tokens of a tile of 448 pixels; other tiles fill slots, too
# Rows for each sequence of a full batch, and at most this share of the memory that is free.
_SEQUENCE_ROWS = 4 * _SLOT_ROWS
_FREE_SHARE = 0.05


@dataclass(frozen=True)
class CapturedTable:
    """What upstream shows of the embedding table, once: while it loads the weights.

    Attributes:
        addresses, dtype: of the table of each GPU.
        device: index of the first of them.
        free_bytes: on it at that time: weights are allocated, KV blocks are not.
    """
    addresses: Sequence[int]
    dtype: torch.dtype
    device: int
    free_bytes: int


def capture_table(params: Mapping[str, Sequence[Any]]) -> Optional[CapturedTable]:
    """The embedding table among the weights that TurboMind has allocated.

    Args:
        params: name -> tensors, one for each GPU, as `TurboMind._get_model_params` collects them.
    """
    tables = [torch.from_dlpack(table) for table in params.get('tok_embeddings.0.weight', ())]
    if not tables:
        return None
    free_bytes, _ = torch.cuda.mem_get_info(tables[0].device)
    return CapturedTable([table.data_ptr() for table in tables], tables[0].dtype,
                         tables[0].device.index, free_bytes)


def build_virtual_tokens(engine: Any) -> Optional[VirtualTokens]:
    """Virtual tokens of upstream's `TurboMind`, tried out; None, with a WARNING that says why,
    where they cannot be had, and without one where nobody asked for them.

    Args:
        engine: complete, and not yet in use.
    """
    settings = Settings.from_env()
    if not engine.engine_config.enable_prefix_caching or settings.prefix_cache == 'off':
        return None
    try:
        return _checked(engine, settings)
    except (NoPlace, SelfTestFailed) as reason:
        logger.warning('TurboMind caches no prefixes with images: %s. Requests with images take '
                       'the stock path', reason)
        return None


def embedding_table(engine: Any) -> EmbeddingTable:
    """Where an engine looks token ids up.

    Raises:
        NoPlace: with the reason why no pool can be placed above it.
    """
    captured = getattr(engine, 'captured_table', None)
    if captured is None:
        raise NoPlace('the embedding table is not to be seen in a model that is loaded from a '
                      'TurboMind workspace; load the checkpoint itself')
    if len(captured.addresses) > 1:
        raise NoPlace(f'tp is {len(captured.addresses)}: each GPU has a part of every row, at an '
                      'address of its own; virtual tokens need tp=1')
    model = engine.config.model_config
    return EmbeddingTable(captured.addresses[0], _vocabulary(model), model.hidden_units,
                          str(captured.dtype).rpartition('.')[2], captured.dtype.itemsize)


def pool_slots(settings_rows: Optional[int], max_batch_size: int, free_bytes: int,
               row_bytes: int) -> int:
    """Slots of a pool.

    Args:
        settings_rows: rows that the settings ask for, if they do.
        free_bytes: on the GPU, with weights and KV blocks in it.
    """
    rows = settings_rows
    if rows is None:
        rows = min(max_batch_size * _SEQUENCE_ROWS, int(_FREE_SHARE * free_bytes) // row_bytes)
    return max(rows // _SLOT_ROWS, 1)


def _vocabulary(model: Any) -> int:
    # with tp=1, the table is not padded; some models' tables have more rows than logits (molmo)
    return max(model.vocab_size, getattr(model, 'embedding_size', 0) or 0)


def _checked(engine: Any, settings: Settings) -> VirtualTokens:
    table = embedding_table(engine)
    memory = _memory(engine, table, settings)
    try:
        tokens = _virtual_tokens(engine, table, memory, settings)
        check_virtual_tokens(engine, tokens, table.hidden)
    except (NoPlace, SelfTestFailed):
        memory.close()
        raise
    logger.info('virtual tokens: a pool of %d rows, %d MiB, above the embedding table',
                tokens.figures().queue.rows.rows, memory.size >> 20)
    return tokens


def _memory(engine: Any, table: EmbeddingTable, settings: Settings) -> MappedMemory:
    device = engine.captured_table.device
    free_bytes, _ = torch.cuda.mem_get_info(device)
    slots = pool_slots(settings.feature_pool_rows, engine.engine_config.max_batch_size, free_bytes,
                       table.row_bytes)
    # one row more: the first whole row may begin inside the memory
    size = (slots * _SLOT_ROWS + 1) * table.row_bytes
    return MappedMemory(table.end, table.address + (1 << 31) * table.row_bytes, size, device)


def _virtual_tokens(engine: Any, table: EmbeddingTable, memory: MappedMemory,
                    settings: Settings) -> VirtualTokens:
    dtype = engine.captured_table.dtype
    ids = virtual_ids(table, table.rows, memory.address, memory.size, (table.hidden, table.dtype))
    slots = ids.rows // _SLOT_ROWS
    total_bytes = torch.cuda.get_device_properties(engine.captured_table.device).total_memory
    capacity = kv_capacity(engine.config.model_config, engine.engine_config, dtype.itemsize,
                           engine.captured_table.free_bytes, total_bytes)
    if not wraps_in_time(slots, _SLOT_ROWS, capacity.most + slots * _SLOT_ROWS):
        raise NoPlace(f'a pool of {slots * _SLOT_ROWS} rows would use ids again before '
                      f'{capacity.most} tokens of KV blocks are evicted; set '
                      f'LMDEPLOY_EXT_FEATURE_POOL_ROWS to {capacity.most // 200 + 1} or more')
    used = memory.bytes()[ids.skip:ids.skip + slots * _SLOT_ROWS * table.row_bytes]
    load = KvLoad(capacity.least)
    pool = FeaturePool(ids, used.view(dtype).view(-1, table.hidden), _SLOT_ROWS,
                       CudaRowWriter(used.device), memory)
    queue = RowQueue(PoolRows(slots, _SLOT_ROWS, capacity.most))
    gate = PrefixGate(load, capacity.most + slots * _SLOT_ROWS, lambda: queue.computed_tokens)
    return VirtualTokens(pool, queue, settings.prefix_cache == 'content',
                         settings.feature_pool_full == 'wait', load, gate,
                         most_tokens(engine.config.attention_config),
                         engine.engine_config.cache_block_seq_len)


def most_tokens(attention: Any) -> Optional[int]:
    """Of a prompt whose keys do not depend on its length; None where those of none do.

    Args:
        attention: TurboMind's `AttentionConfig`.
    """
    scaled = attention.use_dynamic_ntk and attention.rope_scaling_factor >= 1
    return attention.max_position_embeddings if scaled else None
