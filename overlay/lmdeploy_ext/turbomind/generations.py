"""Which rotations of a slot's rows may be used: ids that TurboMind's trie may still hold may not.

A slot is a fixed run of rows. In generation g, token p of what it holds lies in row
(p + g) mod rows, so the first id tells slot and generation, and all that follow. A prompt that
agrees with a cached one up to some block therefore agrees with it in slot and generation of each
tile that begins there, however the blocks of the trie cut the tile. (With runs of different
lengths over the same rows it would not: two of them may share ids from the first one on.)

After as many uses as it has rows, a slot begins again with the first generation. By then, no KV
block may be left that was computed from its ids. TurboMind says nothing about its blocks, but with
prefix caching on they are taken in one order only, the least recently used first
(BlockManager.cc), and none is freed in another way (SequenceManager::Erase). So a block that
nobody can match any more is gone after as many allocations as there are blocks. Every token of an
image that is computed for the first time lies in a block allocated for it; these tokens are
counted.
"""
from array import array
from typing import Optional

_NEVER = -1


class Generations:
    """Of every slot of a pool; not thread-safe.

    Args:
        slots: how many.
        rows: of a slot.
        kv_tokens: at least as many as TurboMind's KV blocks hold together; None where nobody knows
            it: each generation is used once, then the slot is no longer usable.
    """

    def __init__(self, slots: int, rows: int, kv_tokens: Optional[int]) -> None:
        self._rows, self._kv_tokens = rows, kv_tokens
        # What was computed after the end of a generation counts, but it is reported late: of the
        # tokens that are reported after it, as many as the pool holds may have been computed
        # before.
        self._late = slots * rows
        self._computed = 0
        self._next = array('q', [0]) * slots
        self._ended = array('q', [_NEVER]) * (slots * rows)

    def usable(self, slot: int, ahead: int = 0) -> bool:
        """Whether the slot's next generation, or one after it, cannot be in the trie any more."""
        ended = self._ended[slot * self._rows + (self._next[slot] + ahead) % self._rows]
        if ended == _NEVER:
            return True
        return (self._kv_tokens is not None
                and self._computed - ended >= self._kv_tokens + self._late)

    def begin(self, slot: int) -> int:
        """The slot's next generation, for something that is new in it.

        Raises:
            ValueError: it is not usable.
        """
        if not self.usable(slot):
            raise ValueError(f'slot {slot}: KV blocks of generation {self._next[slot]} may be '
                             'left; ask usable() first')
        return self._next[slot]

    def end(self, slot: int) -> None:
        """The ids of the generation that began last are in no sequence any more, nor will be."""
        self._ended[slot * self._rows + self._next[slot]] = self._computed
        self._next[slot] = (self._next[slot] + 1) % self._rows

    def computed(self, tokens: int) -> None:
        """So many tokens were computed that no cached block can have had, each in a KV block."""
        self._computed += tokens

    @property
    def computed_tokens(self) -> int:
        """Since the start."""
        return self._computed


def wraps_in_time(slots: int, rows: int, kv_tokens: int) -> bool:
    """Whether a pool that is used evenly never waits for a generation: all its slots have been
    through all generations only after more tokens than TurboMind's KV blocks hold."""
    return slots * rows * (rows - 1) >= kv_tokens
