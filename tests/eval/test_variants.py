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


def test_a_variant_has_settings_of_its_own():
    few, patched = parse_variants(
        'few:LMDEPLOY_EXT_PATCHES=cpu:max_dynamic_patch=3:concurrency=2,patched', has_gpu=False)
    assert dict(few.env) == {'LMDEPLOY_EXT_PATCHES': 'cpu'}
    assert dict(few.settings) == {'max_dynamic_patch': 3, 'concurrency': 2}
    assert patched.settings == ()
    cached, = parse_variants('cached:prefix_caching=1', has_gpu=False)
    assert dict(cached.settings) == {'prefix_caching': True}
    fresh, = parse_variants('fresh:prefix_caching=0', has_gpu=False)
    assert dict(fresh.settings) == {'prefix_caching': False}
    first, = parse_variants('first:prompt_first=1:prefix_caching=1', has_gpu=False)
    assert dict(first.settings) == {'prefix_caching': True, 'prompt_first': True}
    # a value may hold colons
    budget, = parse_variants('b:LMDEPLOY_EXT_TILES=budget:128:vision_batch=4', has_gpu=False)
    assert dict(budget.env)['LMDEPLOY_EXT_TILES'] == 'budget:128'
    assert dict(budget.settings) == {'vision_batch': 4}


@pytest.mark.parametrize('text, message', [
    ('', 'no variant'),
    ('stok', 'unknown variant stok; did you mean stock?'),
    ('fast', 'unknown variant fast; expected stock or patched'),
    ('stock,stock', 'stands twice'),
    ('stock:LMDEPLOY_EXT_PATCHES=none', 'built in'),
    ('mine:', 'sets nothing'),
    ('mine:PATCHES', "'PATCHES' in the variant mine sets nothing"),
    ('../mine:A=1', "named '../mine'"),
    ('mine:max_dynamic_patches=3', 'sets max_dynamic_patches; did you mean max_dynamic_patch?'),
    ('mine:A=1:seed=x', 'sets seed; expected max_dynamic_patch, concurrency, vision'),
    ('mine:max_dynamic_patch=0', 'max_dynamic_patch=0 in the variant mine; expected a'),
    ('mine:prefix_caching=yes', 'prefix_caching=yes in the variant mine; expected 0 or 1'),
    ('mine:concurrency=1.5', 'concurrency=1.5 in the variant mine'),
    ('mine:LMDEPLOY_EXT_PATCHES=sped', "variant mine: LMDEPLOY_EXT_PATCHES names 'sped'"),
])
def test_wrong_variants_are_refused(text, message):
    with pytest.raises(EvalError) as error:
        parse_variants(text, has_gpu=False)
    assert message in str(error.value)
    assert '\n' not in str(error.value)
