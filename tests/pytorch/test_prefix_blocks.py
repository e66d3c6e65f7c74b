"""Whatever happens to sequences, a block that is read was written for the same prompt."""
from hypothesis import given, settings
from hypothesis import strategies as st

from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
from tests.pytorch.kv_model import AHEAD, IMAGES, Engine

TEXT = st.lists(st.sampled_from([7, 8]), max_size=6)
PARTS = st.lists(st.one_of(TEXT, st.integers(0, len(IMAGES) - 1)), min_size=1, max_size=4)
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
