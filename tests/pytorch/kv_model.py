"""A model of what the KV cache holds, under upstream's scheduler.

No language model runs. A forward pass writes into every position a value that follows from all
tokens and image features up to it, as keys and values do, and checks that what it reads is that.
"""
from dataclasses import dataclass, replace

import numpy as np
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import InputEmbeddings, MessageStatus, SamplingParam
from lmdeploy.pytorch.paging import Scheduler

SIZE, BLOCKS, AHEAD, LONGEST = 4, 20, 5, 48
IMAGES = [np.full((tokens, 2), number, np.float32)
          for number, tokens in enumerate([4, 4, 7, 7, 1, 12])]


def request_of(parts):
    """Token ids and `InputEmbeddings` of a prompt of texts and images; its last token is text."""
    ids, images = [], []
    for part in parts:
        if isinstance(part, int):
            images.append(InputEmbeddings(IMAGES[part], len(ids), len(ids) + len(IMAGES[part])))
            part = [0] * len(IMAGES[part])
        ids += part
    return ids + [9], images


@dataclass
class Engine:
    """Upstream's scheduler, and a KV cache that holds what its values follow from."""
    scheduler: Scheduler
    memory: dict
    sessions: int = 0

    @classmethod
    def start(cls):
        cache = CacheConfig(max_batches=4, block_size=SIZE, num_cpu_blocks=0,
                            num_gpu_blocks=BLOCKS, max_prefill_token_num=32,
                            enable_prefix_caching=True)
        return cls(Scheduler(SchedulerConfig(4, LONGEST, prefill_interval=AHEAD), cache), {})

    def new(self, parts):
        self.add(*request_of(parts))

    def add(self, ids, images):
        session = self.scheduler.add_session(self.sessions)
        self.sessions += 1
        seq = session.add_sequence(np.array(ids), input_embeddings=images)
        self.scheduler.add_sequence(seq)

    def pick(self, number):
        """A session and its sequence."""
        session_id = list(self.scheduler.sessions)[number % len(self.scheduler.sessions)]
        return session_id, *self.scheduler.sessions[session_id].sequences.values()

    def go_on(self, number, parts):
        """Another request of a session that has nothing to do."""
        _, seq = self.pick(number)
        ids, images = request_of(parts)
        if seq.status == MessageStatus.STOPPED and seq.num_all_ids + len(ids) < LONGEST:
            seq.update_token_ids(np.array(ids), images)
            seq.num_new_tokens = 0
            seq.sampling_param = SamplingParam()
            seq.status = MessageStatus.WAITING

    def ask_again(self, number, parts):
        """All that a session holds and another request, first in a session of its own, as a client
        of a server asks, then in that session: its blocks are known, but for the last."""
        _, seq = self.pick(number)
        ids, images = request_of(parts)
        if seq.status == MessageStatus.STOPPED and seq.num_all_ids + len(ids) < LONGEST:
            held, at = list(seq.all_ids), seq.num_all_ids
            before = [replace(image) for image in seq.history_embeddings.embeddings]
            self.add(held + ids, before + [replace(image).move_position(at) for image in images])
            self.prefill()
            self.decode(1)
            self.go_on(number, parts)

    def finish(self, number):
        """The next token of a session is its answer's end."""
        self.pick(number)[1].sampling_param.max_new_tokens = 0

    def stop(self, number):
        self.scheduler.stop_session(self.pick(number)[0])

    def cancel(self, number, parts):
        """A request is cancelled and another one asked in its place."""
        self.stop(number)
        self.go_on(number, parts)

    def end(self, number):
        self.scheduler.end_session(self.pick(number)[0])

    def prefill(self):
        self.forward(self.scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running)

    def decode(self, steps):
        if self.scheduler.has_running():
            running = self.scheduler.schedule(is_prefill=False, prealloc_size=AHEAD).running
            for _ in range(steps):
                self.forward(running)

    def forward(self, running):
        for seq in running:
            if seq.status == MessageStatus.RUNNING:
                token = self.compute(seq)
                full = seq.num_all_ids >= LONGEST or not seq.sampling_param.max_new_tokens
                seq.update_token_ids(np.array([] if full else [token], dtype=np.int64))
                seq.num_new_tokens += not full
                if full:
                    seq.status = MessageStatus.STOPPED

    def compute(self, seq):
        """Read what is computed, write the rest, and return the next token."""
        table = self.scheduler.block_manager.get_block_table(seq)
        values = chain(seq)
        slots = [(table[at // SIZE], at % SIZE) for at in range(len(values))]
        assert seq.num_token_ids > 0
        assert [self.memory[slot] for slot in slots[:seq.history_len]] == \
            values[:seq.history_len], 'a block of another prompt was read'
        written = {block for block, _ in slots[seq.history_len:]}
        others = [table_block for other in self.sequences() if other is not seq
                  for table_block in self.scheduler.block_manager.get_block_table(other)]
        known = {node.block for node in nodes(self.scheduler.block_trie)}
        shared = self.scheduler.block_manager.allocator.get_physical_blocks(
            np.array(sorted(known), dtype=np.int64))
        assert written.isdisjoint(others) and written.isdisjoint(shared.tolist()), 'shared'
        self.memory.update(zip(slots[seq.history_len:], values[seq.history_len:]))
        return 7 + values[-1] % 2

    def sequences(self):
        return list(self.scheduler.seq_manager.get_all_sequences())

    def check(self):
        """References are somebody's, blocks without any are free, and leaves have no children."""
        allocator, trie = self.scheduler.block_manager.allocator, self.scheduler.block_trie
        references = np.zeros(BLOCKS, np.int64)
        for seq in self.sequences():
            np.add.at(references, seq.logical_blocks.get_real_blocks(), 1)
        for node in nodes(trie):
            references[node.block] += 1
        assert (allocator.get_ref_count(np.arange(BLOCKS)) == references).all()
        assert allocator.get_num_free_blocks() == (references == 0).sum()
        assert trie.leaves == {node for node in nodes(trie) if not node.children}


def nodes(trie):
    """All nodes but the roots."""
    waiting, found = list(trie._roots.values()), []
    while waiting:
        children = list(waiting.pop().children.values())
        found += children
        waiting += children
    return found


def chain(seq):
    """For each token, what its keys and values follow from: it, and all tokens before it."""
    content = [(int(token), ) for token in seq.all_ids]
    for image in seq.history_embeddings.embeddings:
        for at in range(image.start, image.end):
            content[at] = (image.embeddings[0, 0], at - image.start)
    values, last = [], 0
    for one in content:
        last = hash((last, one))
        values.append(last)
    return values
