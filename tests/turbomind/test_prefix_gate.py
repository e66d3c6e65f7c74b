"""Who may rely on which KV blocks."""
import pytest

from lmdeploy_ext.turbomind import prefix_gate
from lmdeploy_ext.turbomind.kv_load import KvLoad
from lmdeploy_ext.turbomind.prefix_gate import PrefixGate, parts_of
from lmdeploy_ext.turbomind.waiting_line import Wait

TEXT = list(range(200))


class Gate(PrefixGate):
    """A gate, and how many tokens the engine has computed."""

    def __init__(self, kv_tokens=10**6):
        self.load, self.seen = KvLoad(kv_tokens), 0
        super().__init__(self.load, 1000, lambda: self.seen)

    def send(self, ids):
        return self.enter(parts_of(ids), len(ids))


def test_parts_are_whole_blocks_and_depend_on_all_before():
    assert len(parts_of(TEXT)) == 3 and parts_of(TEXT[:63]) == []
    assert parts_of(TEXT)[:2] == parts_of(TEXT[:128])
    assert parts_of(TEXT)[1] != parts_of([1] + TEXT[1:])[1]
    assert parts_of(TEXT)[1] != parts_of(TEXT[64:])[0]


def test_who_begins_alike_waits_for_the_first_token_and_others_do_not():
    gate = Gate()
    first = gate.send(TEXT)
    assert gate.send(TEXT[:64] + [0]) is Wait.ASIDE
    assert gate.send(TEXT[:63]).owned == []
    assert len(gate.send(TEXT[1:]).owned) == 3
    gate.computed(first)
    second = gate.send(TEXT[:128] + [7] * 64)
    assert len(second.owned) == 1


def test_blocks_are_trusted_until_too_much_came():
    gate = Gate(kv_tokens=2000)

    def serve(ids):
        ticket = gate.send(ids)
        gate.computed(ticket)
        gate.leave(ticket)
        return len(ticket.owned)

    assert serve(TEXT) == 3
    for number in range(6):
        serve([number] * 200)
    assert serve(TEXT) == 0
    for number in range(7):
        serve([number] * 200)
    assert serve(TEXT) == 3


def test_in_an_overloaded_engine_blocks_of_its_oldest_sequences_are_trusted():
    gate = Gate(kv_tokens=700)
    first = gate.send(TEXT)
    gate.computed(first)
    users = [gate.send(TEXT) for _ in range(10)]
    assert not any(user.owned for user in users)
    gate.leave(first)
    assert not gate.send(TEXT).owned, 'the oldest of those that matched them is still there'
    for user in users:
        gate.computed(user)
        gate.leave(user)


def test_a_sequence_that_may_be_preempted_is_no_reason_to_trust():
    load = KvLoad(700)
    shares = [load.begin(200) for _ in range(4)]
    assert load.never_preempted() == set(shares[:2])
    load.grow(shares[0], 300)
    assert load.never_preempted() == set(shares[:1])
    load.end(shares[0])
    assert load.never_preempted() == set(shares[1:3])


def test_what_was_never_computed_is_spoiled_until_it_must_be_gone():
    gate = Gate()
    gate.leave(gate.send(TEXT))
    assert gate.send(TEXT) is None
    gate.seen = 999
    assert gate.send(TEXT) is None
    gate.seen = 1000
    assert len(gate.send(TEXT).owned) == 3


def test_what_was_known_before_is_not_spoiled():
    gate = Gate()
    first = gate.send(TEXT)
    gate.computed(first)
    gate.leave(first)
    gate.leave(gate.send(TEXT[:128] + [7] * 64))
    assert gate.send(TEXT).owned == []
    assert gate.send(TEXT[:128] + [7] * 64) is None


@pytest.mark.parametrize('spoil', [False, True])
def test_parts_of_no_more_use_are_forgotten(monkeypatch, spoil):
    monkeypatch.setattr(prefix_gate, '_MANY', 10)
    gate = Gate(kv_tokens=-1)
    for number in range(100):
        ticket = gate.send([number] * 64)
        gate.seen += 100 * spoil
        if not spoil:
            gate.computed(ticket)
        gate.leave(ticket)
    assert len(gate._parts) <= 12
