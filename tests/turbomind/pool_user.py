"""Requests with images: a pool's rows, the memory behind them, and the engine's model."""
from dataclasses import dataclass
from typing import Any, List

from lmdeploy_ext.turbomind.kv_load import KvLoad
from lmdeploy_ext.turbomind.pool_rows import Lease, PoolRows, Refusal
from lmdeploy_ext.turbomind.prefix_gate import PrefixGate, Ticket, parts_of
from tests.turbomind.engine_model import BLOCK, EngineModel, Sequence

VOCABULARY = 1000


@dataclass(eq=False)
class Request:
    lease: Lease
    ticket: Ticket
    sequence: Sequence
    intended: List[Any]
    computed: bool = False


class PoolUser:
    """Sends requests the way the glue does: take rows, write, start, compute, end, give back.

    Args:
        tokens_of: tokens of each image.
    """

    def __init__(self, slots, slot_rows, blocks, tokens_of, kv_tokens, lru=True):
        self.rows = PoolRows(slots, slot_rows, kv_tokens)
        self.memory = [None] * (slots * slot_rows)
        self.engine = EngineModel(blocks, self.meaning_of, lru)
        # blocks that anybody may evict are never relied on
        self.load = KvLoad(blocks * BLOCK if lru else -1)
        self.gate = PrefixGate(self.load, kv_tokens or 10**9, lambda: self.rows.computed_tokens)
        self.slot_rows, self.tokens_of = slot_rows, tokens_of
        self.running = []

    def meaning_of(self, token):
        return token if token < VOCABULARY else self.memory[token - VOCABULARY]

    def send(self, before, images, after=1):
        """A prompt of some text, images side by side, and text; a `Refusal` or `Wait` where it has
        to wait, None where it may not come in this way.

        The text is the same for all, except for its length.
        """
        wanted = [(b'image %d' % image, self.tokens_of[image]) for image in images]
        lease = self.rows.take(wanted)
        if isinstance(lease, Refusal):
            return lease
        for image in lease.fresh:
            for token, row in enumerate(self.row_numbers(image)):
                self.memory[row] = (image.key, token)
        ids, intended = list(range(before)), list(range(before))
        for image in lease.images:
            ids += [VOCABULARY + row for row in self.row_numbers(image)]
            intended += [(image.key, token) for token in range(image.tokens)]
        ids += range(500, 500 + after)
        intended += range(500, 500 + after)
        self.rows.written(lease)
        ticket = self.gate.enter(parts_of(ids), len(ids))
        if not isinstance(ticket, Ticket):
            self.rows.give_back(lease)
            return ticket
        sequence = self.engine.start(ids, intended)
        if sequence is None:  # no KV blocks: as if cancelled in the queue
            self.rows.give_back(lease)
            self.gate.leave(ticket)
            return None
        request = Request(lease, ticket, sequence, intended)
        self.running.append(request)
        return request

    def row_numbers(self, image):
        return [slot * self.slot_rows + (token + generation) % self.slot_rows
                for index, (slot, generation) in enumerate(image.places)
                for token in range(min(self.slot_rows, image.tokens - index * self.slot_rows))]

    def compute_chunk(self, request, share):
        """A part of the prompt."""
        if not request.computed:
            self.engine.compute(request.sequence, request.intended,
                                int(len(request.intended) * share))

    def compute(self, request):
        self.engine.compute(request.sequence, request.intended)
        request.computed = True
        self.rows.computed(request.lease)
        self.gate.computed(request.ticket)

    def end(self, request):
        """Its last token, or it was cancelled."""
        self.engine.end(request.sequence)
        self.rows.give_back(request.lease)
        self.gate.leave(request.ticket)
        self.running.remove(request)

    def serve(self, before, images, after=1):
        """One request from beginning to end."""
        request = self.send(before, images, after)
        if isinstance(request, Request):
            self.compute(request)
            self.end(request)
        return request

    def serve_somehow(self, before, images):
        """Through the pool, or with embeddings, which TurboMind keeps out of its trie.

        Returns:
            whether through the pool.
        """
        if isinstance(self.serve(before, images), Request):
            return True
        tokens = sum(self.tokens_of[image] for image in images)
        sequence = self.engine.start([-1] * tokens, [None] * tokens)
        self.engine.end(sequence)
        self.rows.computed_elsewhere(tokens)
        return False
