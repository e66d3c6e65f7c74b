"""The prefix cache: what is found, for whom, and what is counted."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lmdeploy.pytorch.config import CacheConfig
from lmdeploy.pytorch.messages import InputEmbeddings, SchedulerSession
from lmdeploy.pytorch.paging.block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_trie import BlockTrie

from lmdeploy_ext.pytorch.prefix.block_key import block_key
from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
from lmdeploy_ext.pytorch.prefix.figures import PrefixFigures
from lmdeploy_ext.pytorch.prefix.image_key import image_key
from lmdeploy_ext.pytorch.prefix.positions import image_positions, place_images
from tests.pytorch.kv_model import BLOCKS, SIZE, request_of


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
