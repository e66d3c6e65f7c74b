"""Rewritten copies of functions: what changes, what stays, and what is refused."""
import inspect
import traceback

import pytest
import torch

from lmdeploy_ext.pytorch.retarget import TO_CPU, TO_FP32, RetargetError, Rules, retarget

LEVEL = 1


def twice(function):
    def call(*args):
        return 2 * function(*args)

    call.__wrapped__ = function
    return call


def move(x, device='cuda'):
    """Ends on the GPU: 'cuda' in a longer text stays."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = x.cuda() + x.to('cuda')
    torch.cuda.synchronize()
    return y, device


def halve(x):
    return x.half(), x.to(torch.float16), torch.zeros(1, dtype=torch.half)


def read_level():
    return LEVEL, 'cuda'


def fail():
    device = 'cuda'
    raise ValueError(device)  # this line


def half_done(x):
    return x.cuda(), x.cuda(non_blocking=True)


def plain():
    return 1


def check():
    raise AssertionError('not replaced')


def guarded():
    check()
    return 'cuda'


class Engine:
    """A class with private names."""

    def __private(self):
        return 'cuda'

    def call(self):
        return self.__private(), 'cuda'

    @twice
    def decorated(self):
        return ['cuda']

    async def later(self):
        return 'cuda'

    def upward(self):
        return super().__repr__(), 'cuda'


def test_streams_transfers_and_names_of_the_device():
    x = torch.ones(2)
    y, device = retarget(move, TO_CPU)(x)
    assert y.tolist() == [2, 2] and y.device.type == 'cpu'
    assert device == 'cpu'


def test_half_precision():
    for value in retarget(halve, TO_FP32)(torch.ones(1)):
        assert value.dtype == torch.float32


def test_the_original_stays():
    source = inspect.getsource(move)
    retarget(move, TO_CPU)
    assert inspect.getsource(move) == source and move.__defaults__ == ('cuda', )


def test_globals_are_read_when_the_copy_runs(monkeypatch):
    copy = retarget(read_level, TO_CPU)
    monkeypatch.setitem(globals(), 'LEVEL', 2)
    assert copy() == (2, 'cpu')
    assert not [name for name in globals() if 'cpu_runtime' in name]


def test_names_are_replaced_for_the_copy_only():
    assert retarget(guarded, TO_CPU, dict(check=lambda: None))() == 'cpu'
    with pytest.raises(AssertionError):
        guarded()


def test_names_alone_are_enough():
    def check():
        pass

    assert retarget(guarded, Rules(frozenset(), ()), dict(check=check))() == 'cuda'


def test_methods_keep_private_names_decorators_and_kind():
    assert retarget(Engine.call, TO_CPU)(Engine()) == ('cuda', 'cpu')
    assert retarget(Engine.decorated, TO_CPU)(Engine()) == ['cpu', 'cpu']
    assert inspect.iscoroutinefunction(retarget(Engine.later, TO_CPU))
    assert retarget(Engine.call, TO_CPU).__qualname__ == 'Engine.call'


def test_tracebacks_show_the_original_line():
    with pytest.raises(ValueError, match='cpu') as caught:
        retarget(fail, TO_CPU)()
    assert traceback.extract_tb(caught.tb)[-1].line == 'raise ValueError(device)  # this line'


@pytest.mark.parametrize('function, message', [
    (plain, 'plain names none of cuda; run the original'),
    (half_done, 'half_done still names cuda in line '),
    (Engine.upward, 'Engine.upward is defined inside a function or uses super'),
])
def test_what_does_not_fit_is_refused(function, message):
    with pytest.raises(RetargetError, match=message):
        retarget(function, TO_CPU)


def test_functions_inside_functions_are_refused():
    def inner():
        return 'cuda'

    with pytest.raises(RetargetError, match='inner is defined inside a function'):
        retarget(inner, TO_CPU)


def test_a_name_that_does_not_occur_is_refused():
    with pytest.raises(RetargetError, match='guarded does not use chekc'):
        retarget(guarded, TO_CPU, dict(chekc=None))
