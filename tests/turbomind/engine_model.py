"""A model of what TurboMind does with token ids: its prefix trie and KV blocks, as read in
BlockTrie.cc, BlockManager.cc, SequenceManager.cc and LlamaBatch.cc of 0.6.0 (the same files up to
0.6.4).

A KV block is the list of what its tokens meant when they were computed; a prompt is wrongly served
if a block that it matches was computed from other meanings than its own.
"""
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

BLOCK = 64


@dataclass(eq=False)
class Block:
    """Keys and values of 64 tokens; None is memory of somebody else, not yet computed."""
    meaning: Optional[Tuple[Any, ...]] = None
    users: int = 0
    touched: int = 0
    evicted: bool = False


@dataclass(eq=False)
class Node:
    ids: Tuple[int, ...] = ()
    block: Optional[Block] = None
    children: Dict[Tuple[int, ...], 'Node'] = field(default_factory=dict)


@dataclass(eq=False)
class Sequence:
    ids: List[int]
    blocks: List[Block] = field(default_factory=list)
    matched: int = 0


class StaleMatch(AssertionError):
    """A prompt was answered from somebody else's keys and values."""


class EngineModel:
    """At most `blocks` KV blocks.

    Args:
        meaning_of: what a token id means now: of a row's id, which token of which image is there.
        lru: evict as TurboMind does; else blocks stay until `evict` names them.
    """

    def __init__(self, blocks, meaning_of, lru=True):
        self.limit, self.meaning_of, self.lru = blocks, meaning_of, lru
        self.blocks, self.root, self.clock = [], Node(), 0
        self.matched_tokens = 0

    def start(self, ids, intended):
        """Match a prompt and allocate what is missing.

        Args:
            intended: what its tokens mean to whoever sends it.
        """
        self._verify(self.root)
        sequence, node = Sequence(list(ids)), self.root
        while len(sequence.blocks) * BLOCK + BLOCK < len(ids):
            begin = len(sequence.blocks) * BLOCK
            node = node.children.get(tuple(ids[begin:begin + BLOCK]))
            if node is None:
                break
            if node.block.meaning != tuple(intended[begin:begin + BLOCK]):
                raise StaleMatch(f'tokens {begin} on: {node.block.meaning} for {intended[begin]}')
            sequence.blocks.append(node.block)
        sequence.matched = len(sequence.blocks)
        self.matched_tokens += sequence.matched * BLOCK
        for block in sequence.blocks:
            block.users += 1
        self._touch(sequence)
        needed = -(-len(ids) // BLOCK) - len(sequence.blocks)
        if not self._room_for(needed):
            for block in sequence.blocks:
                block.users -= 1
            return None
        sequence.blocks += [Block(users=1) for _ in range(needed)]
        self.blocks += sequence.blocks[sequence.matched:]
        return sequence

    def compute(self, sequence, intended, upto=None):
        """Compute the prompt, or the first chunk of it, and put all of it into the trie."""
        meanings = [self.meaning_of(token) for token in sequence.ids]
        assert meanings == list(intended), 'rows were changed while a sequence needs them'
        upto = len(meanings) if upto is None else upto
        for index, block in enumerate(sequence.blocks):
            end = (index + 1) * BLOCK
            if index >= sequence.matched and end <= upto:
                block.meaning = tuple(meanings[index * BLOCK:end])
        self._verify(self.root)
        node = self.root
        for index in range(len(sequence.ids) // BLOCK):
            ids = tuple(sequence.ids[index * BLOCK:(index + 1) * BLOCK])
            node = node.children.setdefault(ids, Node(ids))
            node.block = sequence.blocks[index]
        self._touch(sequence)

    def end(self, sequence):
        self._touch(sequence)
        for block in sequence.blocks:
            block.users -= 1

    def evict(self, index):
        """Any block that no sequence uses."""
        cached = [block for block in self.blocks if not block.users]
        if cached:
            self._evict(cached[index % len(cached)])

    def evict_all(self):
        for block in [block for block in self.blocks if not block.users]:
            self._evict(block)

    def _touch(self, sequence):
        for block in reversed(sequence.blocks):
            self.clock += 1
            block.touched = self.clock

    def _room_for(self, needed):
        if not self.lru:
            return True
        cached = sorted((block for block in self.blocks if not block.users),
                        key=lambda block: block.touched)
        missing = len(self.blocks) + needed - self.limit
        if missing > len(cached):
            return False
        for block in cached[:max(missing, 0)]:
            self._evict(block)
        return True

    def _evict(self, block):
        block.evicted = True
        self.blocks.remove(block)

    def _verify(self, node):
        for ids, child in list(node.children.items()):
            if child.block.evicted:
                del node.children[ids]
            else:
                self._verify(child)
