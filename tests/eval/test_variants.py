"""--variants, and what the words in it mean."""
import pytest

from lmdeploy_ext.eval.errors import EvalError
from lmdeploy_ext.eval.variants import parse_variants


def env(text, has_gpu=False):
    """Variables by variant."""
    return {variant.name: dict(variant.env) for variant in parse_variants(text, has_gpu)}


def test_stock_is_upstream_with_the_cpu_backend_alone():
    assert env('stock,patched') == {
        'stock': {
            'LMDEPLOY_EXT_PATCHES': 'cpu'
        },
        'patched': {
            'LMDEPLOY_EXT_PATCHES': 'all'
        }
    }


def test_stock_with_a_gpu_is_upstream_alone():
    assert env('stock', has_gpu=True) == {'stock': {'LMDEPLOY_EXT_PATCHES': 'none'}}


def test_own_variants():
    assert env('patched, mine:LMDEPLOY_EXT_PATCHES=all+-cpu:OMP_NUM_THREADS=1')['mine'] == {
        'LMDEPLOY_EXT_PATCHES': 'all,-cpu',
        'OMP_NUM_THREADS': '1'
    }
    assert env('url:SOME_URL=http://host:8000')['url']['SOME_URL'] == 'http://host:8000'
    # not what the caller's environment happens to say
    assert env('threads:OMP_NUM_THREADS=1')['threads']['LMDEPLOY_EXT_PATCHES'] == 'all'


@pytest.mark.parametrize('text, message', [
    ('', 'no variant'),
    ('stok', 'unknown variant stok; did you mean stock?'),
    ('fast', 'unknown variant fast; expected stock or patched'),
    ('stock,stock', 'stands twice'),
    ('stock:LMDEPLOY_EXT_PATCHES=none', 'built in'),
    ('mine:', 'sets nothing'),
    ('mine:PATCHES', "'PATCHES' in the variant mine sets nothing"),
    ('../mine:A=1', "named '../mine'"),
    ('mine:LMDEPLOY_EXT_PATCHES=sped', "variant mine: LMDEPLOY_EXT_PATCHES names 'sped'"),
])
def test_wrong_variants_are_refused(text, message):
    with pytest.raises(EvalError) as error:
        parse_variants(text, has_gpu=False)
    assert message in str(error.value)
    assert '\n' not in str(error.value)
