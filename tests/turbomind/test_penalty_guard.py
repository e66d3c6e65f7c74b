"""Requests with virtual tokens and those with a repetition penalty never meet."""
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lmdeploy_ext.turbomind.penalty_guard import PenaltyGuard


class Requests(RuleBasedStateMachine):

    def __init__(self):
        super().__init__()
        self.guard, self.virtual, self.penalised = PenaltyGuard(), 0, []

    @rule()
    def virtual_comes(self):
        entered = self.guard.enter_virtual()
        assert entered == (not self.penalised), 'one with a penalty waits, or is in'
        self.virtual += entered

    @precondition(lambda self: self.virtual)
    @rule()
    def virtual_ends(self):
        self.guard.leave_virtual()
        self.virtual -= 1

    @rule()
    def penalised_comes(self):
        self.penalised.append(self.guard.enter_penalised())

    @precondition(lambda self: self.penalised)
    @rule()
    def penalised_ends_or_is_cancelled(self):
        self.penalised.pop().cancel()
        self.guard.leave_penalised()

    @invariant()
    def nobody_waits_for_nothing_and_nobody_meets(self):
        for entered in self.penalised:
            assert entered.done() == (not self.virtual)


Requests.TestCase.settings = settings(max_examples=50)
TestRequests = Requests.TestCase
