"""Blocks of the KV cache that several sequences read, kept in upstream's `BlockTrie`.

What holds at any time, and why no sequence ever writes to a block that another one reads:
- A block enters the trie when all its tokens are computed (upstream: one step earlier).
- A sequence writes at its step (`history_len`) and behind it. Its blocks up to `last_shared_node`
  may be in the trie; that node ends at or before the step.
- A node is known by its `block_key`, so the path from the root names every token, and every row of
  image features, that its keys and values depend on.
"""
from typing import Any, List

import numpy as np
from lmdeploy.pytorch.paging.block_trie import Node

from lmdeploy_ext.config import Settings

from .block_key import block_key
from .figures import PrefixCounter, PrefixFigures, cached_tokens


class PrefixCache:
    """Finds a sequence's blocks in a trie, and puts them there. The engine's event loop calls it.

    Args:
        trie: upstream's `BlockTrie`: keeps the nodes, and gives up those that nobody reads.
        mode: `content`, `text` (blocks before the first image only) or `off`.
    """

    def __init__(self, trie: Any, mode: str) -> None:
        self.mode = mode if trie.enable else 'off'
        self._trie = trie
        self._counter = PrefixCounter()

    def share_text_only(self) -> None:
        """Share no blocks with images from now on."""
        if self.mode == 'content':
            self.mode = 'text'

    def match(self, seq: Any) -> None:
        """Give a sequence that waits the longest known prefix; one token at least is left to
        compute.

        Args:
            seq: a `SchedulerSequence`, new or with blocks of its own, which are given back where
                known ones take their place.
        """
        if self.mode == 'off':
            return
        held, asked = seq.history_len, seq.num_token_ids
        node = self._last_node(seq)
        # who wants the logits of all prompt tokens needs them computed
        found = [] if seq.return_logits else self._known(seq, node)
        if found:
            self._share(seq, found)
            node = found[-1]
            # more than is known may be computed already, in a block that is not full
            seq.set_step(max(held, node.num_matched))
        seq.logical_blocks.last_shared_node = node
        self._counter.looked_up(seq, held, asked)

    def insert(self, seq: Any) -> None:
        """Make the full blocks of a sequence known; where one is known already, the sequence reads
        that one from now on and gives its own back."""
        if self.mode == 'off':
            return
        trie, size, held = self._trie, self._trie.block_size, seq.logical_blocks
        node, last = self._last_node(seq), min(self._shareable(seq), seq.history_len)
        shared, doubles = [], []
        for end in range(node.num_matched + size, last + 1, size):
            key, index = block_key(seq, end - size, end), end // size - 1
            child = node.children.get(key)
            if child is None:
                child = Node(hash_key=key, block=held[index], tokens=None, num_matched=end)
                child.parent = node
                trie.leaves.discard(node)
                trie.leaves.add(child)
            else:
                doubles.append(held[index])
                held[index] = child.block
            shared.append(child.block)  # of a new node it is the trie's own reference
            node = child
        held.last_shared_node = node
        if shared:
            trie.allocator.add_ref_count(np.array(shared), 1)
        if doubles:
            trie.allocator.free(np.array(doubles))

    def cached_tokens(self, session: Any) -> int:
        """Prompt tokens of a `SchedulerSession`'s present request that came from the cache."""
        return sum(map(cached_tokens, session.sequences.values()))

    def figures(self) -> PrefixFigures:
        """What was looked up and found since the start."""
        return self._counter.figures()

    def _last_node(self, seq: Any) -> Node:
        """The node of the last block of a sequence that the trie knows; the root before that."""
        node = seq.logical_blocks.last_shared_node
        return self._trie.get_root(seq.adapter_name) if node is None else node

    def _shareable(self, seq: Any) -> int:
        """How many tokens at the start of a sequence its ids and images describe in full."""
        if getattr(seq, 'cross_attention_states', None) is not None:  # since 0.6.2: Mllama
            return 0
        images = seq.history_embeddings.embeddings
        # since 0.6.1 Qwen2-VL: positions behind an image follow from its height and width
        by_shape = getattr(seq, 'mrope_position_ids', None) is not None
        if images and (by_shape or self.mode == 'text'):
            return min(image.start for image in images)
        return seq.num_all_ids

    def _known(self, seq: Any, node: Node) -> List[Node]:
        """The nodes behind `node` that hold a sequence's next blocks."""
        size, last = self._trie.block_size, min(self._shareable(seq), seq.num_all_ids - 1)
        known: List[Node] = []
        for end in range(node.num_matched + size, last + 1, size):
            node = node.children.get(block_key(seq, end - size, end))
            if node is None:
                break
            known.append(node)
        return known

    def _share(self, seq: Any, nodes: List[Node]) -> None:
        """Let a sequence read the blocks of consecutive nodes."""
        allocator, held = self._trie.allocator, seq.logical_blocks
        blocks = np.array([node.block for node in nodes])
        first = nodes[0].num_matched // self._trie.block_size - 1
        allocator.update_access_time(blocks)
        allocator.add_ref_count(blocks, 1)
        own = held[first:first + len(blocks)].copy()
        held[first:first + len(own)] = blocks[:len(own)]
        held.append(blocks[len(own):])
        if len(own):
            allocator.free(own)


def prefix_cache_of(trie: Any) -> PrefixCache:
    """The cache that a `BlockTrie` has; of an engine, `engine.scheduler.block_trie`."""
    if not hasattr(trie, 'prefix_cache'):
        trie.prefix_cache = PrefixCache(trie, Settings.from_env().prefix_cache)
    return trie.prefix_cache
