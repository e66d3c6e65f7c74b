"""The prefix cache under upstream's scheduler, with a model of what the KV cache holds.

No language model runs. A forward pass writes into every position a value that follows from all
tokens and image features up to it, as keys and values do, and checks that what it reads is that.
"""
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import (InputEmbeddings, MessageStatus, SamplingParam,
                                       SchedulerSession)
from lmdeploy.pytorch.paging import Scheduler
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_trie import BlockTrie

from lmdeploy_ext.pytorch.prefix.block_key import block_key
from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
from lmdeploy_ext.pytorch.prefix.figures import PrefixFigures
from lmdeploy_ext.pytorch.prefix.image_key import image_key
from lmdeploy_ext.pytorch.prefix.positions import image_positions, place_images

SIZE, BLOCKS, AHEAD, LONGEST = 4, 20, 5, 48
IMAGES = [np.full((tokens, 2), number, np.float32)
          for number, tokens in enumerate([4, 4, 7, 7, 1, 12])]
TEXT = st.lists(st.sampled_from([7, 8]), max_size=6)
PARTS = st.lists(st.one_of(TEXT, st.integers(0, len(IMAGES) - 1)), min_size=1, max_size=4)


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


OF_SESSIONS = ('go_on', 'ask_again', 'cancel', 'finish', 'stop', 'end')
NUMBER = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just('new'), PARTS), st.tuples(st.just('new'), PARTS),
    st.tuples(st.just('prefill')), st.tuples(st.just('prefill')),
    st.tuples(st.just('decode'), st.integers(1, AHEAD - 1)),
    st.tuples(st.sampled_from(['go_on', 'ask_again', 'cancel']), NUMBER, PARTS),
    st.tuples(st.just('finish'), NUMBER), st.tuples(st.just('stop'), NUMBER),
    st.tuples(st.just('end'), NUMBER))


@settings(max_examples=200)
@given(st.lists(STEPS, min_size=15, max_size=60))
def test_every_block_that_is_read_was_written_for_that_prompt(steps):
    engine = Engine.start()
    for name, *arguments in steps:
        if name in OF_SESSIONS and not engine.scheduler.sessions:
            continue
        getattr(engine, name)(*arguments)
        engine.check()


def test_blocks_are_given_up_when_others_need_them_and_found_again_until_then():
    engine = Engine.start()
    for number in range(40):  # 5 images in turn, each time with another text: 20 blocks
        engine.new([number % 5, 5, [7, 8, 7 + number % 2]])
        engine.prefill()
        engine.decode(2)
        engine.end(0)
        engine.check()
    figures = prefix_cache_of(engine.scheduler.block_trie).figures()
    assert figures.requests == 40
    assert 0.2 < figures.hit_rate < 0.8


@pytest.fixture
def trie():
    config = CacheConfig(max_batches=2, block_size=SIZE, num_cpu_blocks=1, num_gpu_blocks=BLOCKS,
                         enable_prefix_caching=True)
    return BlockTrie(config, DefaultBlockManager(BLOCKS, 1))


def sequence(parts, **fields):
    ids, images = request_of(parts)
    manager = SimpleNamespace(add_sequence=lambda seq: None)
    return SchedulerSession(0, SIZE, manager).add_sequence(np.array(ids), input_embeddings=images,
                                                           **fields)


def known(trie, seq):
    """How many tokens of a new sequence are found; those that are not are computed and kept."""
    trie.match(seq)
    found = seq.history_len
    trie.block_manager.allocate(seq)
    seq.set_step(seq.num_all_ids)
    trie.allocate(seq)
    trie.block_manager.free(seq)
    return found


def test_an_image_is_found_up_to_its_last_full_block_and_another_is_not(trie):
    parts = [[7, 8, 7], 5]  # the image is tokens 3 to 14
    assert known(trie, sequence(parts)) == 0
    assert known(trie, sequence(parts)) == 12  # in block 3 is the last token, which is computed
    assert known(trie, sequence(parts + [[8]])) == 12  # and with another text it is another block
    assert known(trie, sequence([[7, 8, 7], 3, 1, [8]])) == 0
    assert known(trie, sequence([[7, 8, 7, 7], 5])) == 0


def test_one_token_at_least_is_left_to_compute(trie):
    assert known(trie, sequence([[7] * 7])) == 0
    assert known(trie, sequence([[7] * 7])) == 4


def test_adapters_share_nothing(trie):
    parts = [5, [7, 7, 7]]
    assert known(trie, sequence(parts, adapter_name='a')) == 0
    assert known(trie, sequence(parts, adapter_name='b')) == 0
    assert known(trie, sequence(parts)) == 0
    assert known(trie, sequence(parts, adapter_name='a')) == 12


def test_who_wants_logits_of_the_prompt_gets_all_of_them(trie):
    assert known(trie, sequence([[7] * 9])) == 0
    assert known(trie, sequence([[7] * 9], return_logits=True)) == 0
    assert known(trie, sequence([[7] * 9])) == 8


@pytest.mark.parametrize('mode, found', [('content', 20), ('text', 4), ('off', 0)])
def test_modes(trie, monkeypatch, mode, found):
    monkeypatch.setenv('LMDEPLOY_EXT_PREFIX_CACHE', mode)
    parts = [[7] * 6, 5, [8, 8]]
    known(trie, sequence(parts))
    assert known(trie, sequence(parts)) == found
    assert known(trie, sequence([[8] * 9])) == 0
    assert known(trie, sequence([[8] * 9])) == (0 if mode == 'off' else 8)


def test_positions_that_follow_from_the_shape_of_an_image_are_not_shared(trie):
    """Qwen2-VL (`mrope_position_ids`) and Mllama (`cross_attention_states`)."""
    parts = [[7] * 6, 5, [8, 8]]
    for field, found in (('mrope_position_ids', 4), ('cross_attention_states', 0)):
        for expected in (0, found):
            seq = sequence(parts)
            setattr(seq, field, np.zeros((3, seq.num_all_ids)))
            seq.adapter_name = field  # a root of its own
            assert known(trie, seq) == expected


def test_equal_hashes_are_no_hit(trie):
    """Python's hashes of -1 and -2 are equal, so stock's are for whole blocks of them."""
    assert hash((-1, ) * SIZE) == hash((-2, ) * SIZE)
    first, second = sequence([[-1] * 9]), sequence([[-2] * 9])
    assert (known(trie, first), known(trie, second)) == (0, 0)
    assert block_key(first, 0, SIZE) != block_key(second, 0, SIZE)


def test_blocks_of_one_image_differ_in_their_place_in_it():
    seq = sequence([5])  # 3 blocks, all of the same ids
    assert len({block_key(seq, start, start + SIZE) for start in (0, 4, 8)}) == 3
    assert block_key(seq, 4, 8) == block_key(sequence([5, 5]), 4, 8)


def test_figures_count_a_request_once_however_often_it_waits(trie):
    cache = prefix_cache_of(trie)
    known(trie, sequence([5, [7, 7]]))
    seq = sequence([5, [7, 7]])
    for _ in range(3):
        trie.match(seq)
    assert cache.figures() == PrefixFigures(requests=2, prompt_tokens=30, cached_tokens=12)
    assert cache.cached_tokens(seq.session) == 12
    trie.block_manager.free(seq)  # it was evicted while it waited
    seq.set_step(0)
    trie.match(seq)
    assert cache.figures().cached_tokens == 12
    trie.block_manager.free(seq)
    seq.set_step(0)
    seq.num_new_tokens = 1  # it was preempted: what it finds is its own
    trie.match(seq)
    assert cache.figures().cached_tokens == 12


def test_an_image_is_known_by_the_values_of_its_features():
    def key(values):
        return image_key(InputEmbeddings(values, 0, len(values)))

    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert key(values) == key(values.copy())
    assert len({key(values), key(values + 1), key(values.reshape(2, 3)),
                key(values.astype(np.float16))}) == 4


def test_features_go_where_the_rest_of_an_image_is_computed():
    seq = sequence([[7, 8, 7], 5, [8], 1])  # images at 3 to 14 and 16 to 19, 21 tokens
    rows = {}
    for step in (0, 8, 15, 18):
        seq.set_step(step)
        assert seq.history_len == step
        rows[step] = image_positions([seq, sequence([[7]])], 21 - step).int()
    whole = torch.tensor([0] * 3 + [1] * 12 + [0] + [1] * 4 + [0])
    for step, row in rows.items():
        assert row[0].tolist() == whole[step:].tolist() and not row[1].any()


def test_a_model_whose_positions_count_whole_images_shares_text_only(trie):
    """CogVLM and GLM-4V."""
    engine = SimpleNamespace(model_config=SimpleNamespace(cogvlm_style=True),
                             scheduler=SimpleNamespace(block_trie=trie))
    place_images(engine, [], SimpleNamespace(vision_inputs=None))
    parts = [[7] * 6, 5, [8, 8]]
    known(trie, sequence(parts))
    assert known(trie, sequence(parts)) == 4
