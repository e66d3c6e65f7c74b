import functools
import inspect

import pytest

from lmdeploy_ext.patching import PatchError
from lmdeploy_ext.patching.declaration import Patch
from lmdeploy_ext.patching.replacement import finish_class, finish_function


def patch_with(signature_change=None):
    return Patch('a_patch', 'lmdeploy.a:f', 'cpu', {}, {}, 'why', 'when', signature_change, None)


def original(self, inputs, *, limit: int = 3):
    """What it does."""


async def original_coroutine(inputs):
    pass


async def original_stream(inputs):
    yield inputs


def test_a_replacement_looks_like_the_original():

    def other(self, inputs, *, limit=3):
        return 'new'

    finished = finish_function(patch_with(), original, other)
    assert finished is other and finished(None, None) == 'new'
    assert finished.__wrapped__ is original
    assert (finished.__name__, finished.__doc__) == ('original', 'What it does.')
    assert finished.__module__ == original.__module__
    assert inspect.signature(finished) == inspect.signature(original)


@pytest.mark.parametrize('wrapper', [
    lambda *args, **kwargs: None,
    lambda self, *args, **kwargs: None,
    lambda self, inputs, *args, **kwargs: None,
    functools.wraps(original)(lambda *args, **kwargs: None),
    functools.wraps(original)(lambda self, inputs, *, limit=3: None),
    functools.lru_cache(lambda self, inputs, *, limit=3: None),
])
def test_what_takes_all_that_the_original_takes_fits(wrapper):
    assert inspect.signature(finish_function(patch_with(), original, wrapper)) == \
        inspect.signature(original)


@pytest.mark.parametrize('wrong', [
    lambda self, inputs: None,
    lambda self, inputs, limit=3: None,
    lambda self, inputs, *, limit=4: None,
    lambda self, inputs, *, limit: None,
    lambda self, inputs, *, limit=3, more=1: None,
    lambda self, images, *args, **kwargs: None,
    lambda self, inputs, *args: None,
    functools.wraps(original)(lambda self, inputs: None),
])
def test_other_parameters_are_refused_unless_declared(wrong):
    with pytest.raises(PatchError, match=r'a_patch: the replacement takes .*lmdeploy.a:f takes '
                       r'\(self, inputs, \*, limit=3\)'):
        finish_function(patch_with(), original, wrong)


def test_a_declared_change_of_parameters_shows_in_the_signature():

    def wider(self, inputs, extra, *, limit=3):
        pass

    finished = finish_function(patch_with('upstream passes extra'), original, wider)
    assert list(inspect.signature(finished).parameters) == ['self', 'inputs', 'extra', 'limit']


@pytest.mark.parametrize('asynchronous, kind', [(original_coroutine, 'a coroutine function'),
                                                (original_stream, 'an async generator')])
def test_async_stays_async(asynchronous, kind):

    async def coroutine(inputs):
        return await asynchronous(inputs)

    async def stream(inputs):
        async for item in asynchronous(inputs):
            yield item

    def plain(inputs):
        return asynchronous(inputs)

    same, other = (coroutine, stream) if kind == 'a coroutine function' else (stream, coroutine)
    assert finish_function(patch_with(), asynchronous, same) is same
    for wrong in (other, plain):
        with pytest.raises(PatchError, match=f'is .*, lmdeploy.a:f is {kind}; keep it'):
            finish_function(patch_with(), asynchronous, wrong)
    assert finish_function(patch_with('sync on purpose'), asynchronous, plain) is plain


def test_the_kind_is_seen_through_decorators():

    def decorated(function):
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

    @decorated
    async def same(inputs):
        pass

    assert finish_function(patch_with(), decorated(original_coroutine), same) is same


@pytest.mark.parametrize('nothing, found', [(None, 'a NoneType'), (3, 'a int'),
                                            (original, 'the original'), (dict, 'a type')])
def test_a_patch_returns_a_new_function(nothing, found):
    with pytest.raises(PatchError, match=f'returned {found}; return a new function'):
        finish_function(patch_with(), original, nothing)


class Original:
    """A class."""


def test_a_class_keeps_its_name():

    class New(Original):
        pass

    finished = finish_class(patch_with(), Original, New)
    assert finished is New
    assert (New.__name__, New.__qualname__, New.__module__) == ('Original', 'Original', __name__)
    assert New.__doc__ == 'A class.'


def test_a_class_that_others_inherit_from_is_refused():

    class Base:
        pass

    class Heir(Base):
        pass

    class New(Base):
        pass

    with pytest.raises(PatchError, match='Heir already inherits from lmdeploy.a:f'):
        finish_class(patch_with(), Base, New)


@pytest.mark.parametrize('nothing', [None, Original, original])
def test_a_patch_of_a_class_returns_a_new_class(nothing):
    with pytest.raises(PatchError, match='return a new class'):
        finish_class(patch_with(), Original, nothing)
