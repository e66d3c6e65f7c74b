"""Which token id names which row of a pool that lies above the embedding table.

TurboMind's lookup reads `table[id * hidden + i]` in 64-bit arithmetic and checks no bounds
(gpt_kernels.cu, start_id_embedding_position_lookups_kernel), so an id may name any row that is a
whole number of rows above the table.
"""
from dataclasses import dataclass
from typing import List, Tuple

_LAST_ID = 2**31 - 1  # ids are int32 on their way into TurboMind and inside


class NoPlace(ValueError):
    """Why token ids cannot name rows of a pool."""


@dataclass(frozen=True)
class EmbeddingTable:
    """Where TurboMind looks token ids up.

    Attributes:
        address: of its first byte, on the GPU.
        rows, hidden: its shape; rows are vocab_size, or more where it is padded.
        dtype: torch's name of its type, like `float16`.
        item_bytes: of one number.
    """
    address: int
    rows: int
    hidden: int
    dtype: str
    item_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.hidden * self.item_bytes

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.rows * self.row_bytes


@dataclass(frozen=True)
class VirtualIds:
    """The ids of a pool's rows.

    Attributes:
        first: the id of row 0; the others follow.
        rows: how many.
        skip: bytes of the pool before row 0.
    """
    first: int
    rows: int
    skip: int

    def of_tile(self, slot: int, generation: int, slot_rows: int, tokens: int) -> List[int]:
        """The ids of a tile's tokens, in order; see `generations`.

        Args:
            tokens: of the tile, at most `slot_rows`.
        """
        start = self.first + slot * slot_rows
        turned = start + generation % slot_rows
        return [*range(turned, start + slot_rows), *range(start, turned)][:tokens]


def virtual_ids(table: EmbeddingTable, vocab_size: int, address: int, size: int,
                features: Tuple[int, str]) -> VirtualIds:
    """The ids of the rows that lie whole in a piece of memory.

    Args:
        vocab_size: of the language model; its sampling kernels index logits with smaller ids.
        address, size: of the memory, in bytes.
        features: length of a row and torch's name of the dtype, as the vision model makes them.

    Raises:
        NoPlace: with the reason.
    """
    if features != (table.hidden, table.dtype):
        raise NoPlace(f'features are {features[1]} rows of {features[0]}, embeddings '
                      f'{table.dtype} rows of {table.hidden}; the lookup reads rows as they are')
    if address < table.end:
        raise NoPlace(f'the pool is at {address:#x}, below the end of the embedding table at '
                      f'{table.end:#x}: ids would be negative or words; it must lie above')
    first = -((table.address - address) // table.row_bytes)  # rounded up to a whole row
    skip = table.address + first * table.row_bytes - address
    rows = (size - skip) // table.row_bytes
    if first < vocab_size:
        raise NoPlace(f'the first id is {first}, but the vocabulary has {vocab_size} ids (the '
                      f'table {table.rows} rows); the pool must lie further above')
    if rows < 1:
        raise NoPlace(f'{size} bytes hold no row of {table.row_bytes} bytes; make the pool larger')
    if first + rows - 1 > _LAST_ID:
        raise NoPlace(f'the last id is {first + rows - 1}, ids are at most {_LAST_ID} (int32); '
                      'the pool must lie nearer to the table')
    return VirtualIds(first, rows, skip)
