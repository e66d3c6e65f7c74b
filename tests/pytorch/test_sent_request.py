"""What a request found in the prefix cache, as long as it can be told that it is this one's."""
from types import SimpleNamespace

import pytest

from lmdeploy_ext.pytorch.prefix.figures import PrefixCounter
from lmdeploy_ext.pytorch.prefix.sent_request import SentRequest

SESSION, SENDER, FIRST = 5, 2, 10


def looked_up(request, sender=SENDER):
    """A sequence of 80 tokens, of which a request of 60 found 32 beside 20 that were there."""
    seq = SimpleNamespace(sender_id=sender, req_id=request, history_len=52, num_new_tokens=0)
    PrefixCounter().looked_up(seq, 20, 60)
    return seq


def tell(*sequences, enable=True, keyed=True, mode='content', erased=False):
    def match(seq):
        pass

    match.tells_images_apart = keyed
    trie = SimpleNamespace(enable=enable, match=match, prefix_cache=SimpleNamespace(mode=mode))
    sessions = {SESSION: SimpleNamespace(sequences=dict(enumerate(sequences)))}
    scheduler = SimpleNamespace(block_trie=trie, sessions={} if erased else sessions)
    instance = SimpleNamespace(engine=SimpleNamespace(scheduler=scheduler),
                               req_sender=SimpleNamespace(sender_id=SENDER, _next_req_id=FIRST))
    return SentRequest(instance, SESSION).cached_tokens()


@pytest.mark.parametrize('request_id', [FIRST, FIRST + 1])
def test_what_it_found_itself(request_id):
    assert tell(looked_up(request_id)) == 32


def test_nothing_where_nothing_is_cached():
    seq = looked_up(FIRST)
    assert tell(seq, enable=False) == tell(seq, mode='off') == 0


@pytest.mark.parametrize('why, sequences, options', [
    ('the session has ended', [looked_up(FIRST)], dict(erased=True)),
    ('it waits to be looked up', [SimpleNamespace()], {}),
    ('the last request of the session, by the same instance', [looked_up(FIRST - 1)], {}),
    ('a request of the session by another instance', [looked_up(FIRST, sender=3)], {}),
    ('upstream\'s cache answers', [looked_up(FIRST)], dict(keyed=False)),
], ids=lambda value: value if isinstance(value, str) else '')
def test_nothing_is_told_that_is_not_known_to_be_its_own(why, sequences, options):
    assert tell(*sequences, **options) is None
