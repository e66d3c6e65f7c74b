"""Environment variables: what is allowed, and what is said about the rest."""
import pytest

from lmdeploy_ext.config import SettingError, Settings, api_key
from lmdeploy_ext.vl.image_decode import PixelRules
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.tile_policy import TilePolicy


def test_what_is_not_set_has_its_default():
    assert Settings.from_env({}) == Settings('all', None, None)
    blank = {'LMDEPLOY_EXT_CPU_KV_GB': ' ', 'LMDEPLOY_EXT_CPU_THREADS': ''}
    assert Settings.from_env(blank) == Settings('all', None, None)
    assert api_key({'LMDEPLOY_EXT_API_KEY': ''}) is None


def test_what_is_set_is_read():
    env = {'LMDEPLOY_EXT_PATCHES': 'cpu', 'LMDEPLOY_EXT_CPU_KV_GB': '0.5',
           'LMDEPLOY_EXT_CPU_THREADS': '2', 'LMDEPLOY_EXT_API_KEY': 'secret'}
    assert Settings.from_env(env) == Settings('cpu', 0.5, 2)
    assert api_key(env) == 'secret' and 'secret' not in repr(Settings.from_env(env))


@pytest.mark.parametrize('name, value, kind', [
    ('CPU_KV_GB', '0', 'float'),
    ('CPU_KV_GB', '-1', 'float'),
    ('CPU_KV_GB', 'nan', 'float'),
    ('CPU_KV_GB', 'inf', 'float'),
    ('CPU_KV_GB', 'four', 'float'),
    ('CPU_THREADS', '0', 'int'),
    ('CPU_THREADS', '1.5', 'int'),
])
def test_a_number_that_cannot_be_used_is_refused(name, value, kind):
    with pytest.raises(SettingError) as caught:
        Settings.from_env({f'LMDEPLOY_EXT_{name}': value})
    assert str(caught.value) == (f"LMDEPLOY_EXT_{name}='{value}' is not a positive {kind}; "
                                 f'set it to one, or unset it for the default')


def test_the_mode_of_the_prefix_cache_is_read():
    assert Settings.from_env({}).prefix_cache == 'content'
    for mode in ('content', 'text', 'off'):
        assert Settings.from_env({'LMDEPLOY_EXT_PREFIX_CACHE': mode}).prefix_cache == mode
    with pytest.raises(SettingError, match="PREFIX_CACHE='on' is not content, text or off"):
        Settings.from_env({'LMDEPLOY_EXT_PREFIX_CACHE': 'on'})


def test_settings_of_images_are_read():
    env = {'LMDEPLOY_EXT_TILES': 'budget:1280', 'LMDEPLOY_EXT_MAX_SHRINK': '1.5',
           'LMDEPLOY_EXT_TILE_FIT': 'crop', 'LMDEPLOY_EXT_THUMBNAIL_FROM': '4',
           'LMDEPLOY_EXT_MAX_TILES': '6', 'LMDEPLOY_EXT_PIXELS': 'upstream',
           'LMDEPLOY_EXT_IMAGE_MAX_PIXELS': '1000', 'LMDEPLOY_EXT_IMAGE_MAX_BYTES': '2000',
           'LMDEPLOY_EXT_IMAGE_MAX_SIDE': '300', 'LMDEPLOY_EXT_IMAGE_URL_SECONDS': '2.5',
           'LMDEPLOY_EXT_IMAGE_PRIVATE_ADDRESSES': '1', 'LMDEPLOY_EXT_IMAGE_OTHER_HOSTS': '0'}
    images = ImageSettings.of(Settings.from_env(env))
    assert images == ImageSettings(ImageLimits(1000, 2000, 300, 2.5, True, False),
                                   PixelRules(upstream=True),
                                   TilePolicy('budget', 1280, 1.5, 'crop', 4), 6)
    assert ImageSettings.of(Settings.from_env({})) == ImageSettings(
        ImageLimits(), PixelRules(), TilePolicy())


def test_what_decides_tiles_differs_where_tiles_do():
    def told(**env):
        settings = Settings.from_env({f'LMDEPLOY_EXT_{name}': env[name] for name in env})
        return ImageSettings.of(settings).what_decides_tiles()

    plain = told()
    assert plain['kind'] == 'native' and plain['pixels'] == 'fast'
    for name, value in [('TILES', 'stock'), ('MAX_SHRINK', '2'), ('MAX_TILES', '3'),
                        ('PIXELS', 'upstream'), ('TILE_FIT', 'pad')]:
        assert told(**{name: value}) != plain
    assert told(IMAGE_WORKERS='3', IMAGE_URL_SECONDS='1') == plain


@pytest.mark.parametrize('name, value, said', [
    ('TILES', 'nativ', 'is not native, stock or budget:N'),
    ('TILES', 'budget', 'is not native, stock or budget:N'),
    ('TILES', 'budget:0', 'is not native, stock or budget:N'),
    ('TILE_FIT', 'fill', 'is not auto, pad, crop or stretch'),
    ('PIXELS', '1', 'is not fast or upstream'),
    ('IMAGE_OTHER_HOSTS', 'yes', 'is not 0 or 1'),
    ('MAX_SHRINK', '0.5', 'is less than 1'),
    ('THUMBNAIL_FROM', '1', 'is less than 2'),
    ('IMAGE_MAX_BYTES', '64MB', 'is not a positive int'),
    ('VISION', 'fast', 'is not auto, eager, graphs, compile, upstream or off'),
    ('VISION_DTYPE', 'half', 'is not float16, bfloat16 or float32'),
    ('VISION_GRAPHS', '1-', 'is not a range like 1-8 or a list like 1,2,4'),
    ('VISION_GRAPHS', '0,1', 'is not a range like 1-8 or a list like 1,2,4'),
    ('VISION_GRAPHS', '1-1000000000', 'is not a range like 1-8 or a list like 1,2,4'),
    ('FEATURE_CACHE_MB', '-1', 'is not a whole number'),
])
def test_a_setting_of_images_that_cannot_be_used_is_refused(name, value, said):
    with pytest.raises(SettingError) as caught:
        Settings.from_env({f'LMDEPLOY_EXT_{name}': value})
    message = str(caught.value)
    assert message.startswith(f'LMDEPLOY_EXT_{name}={value!r} {said}')
    assert message.endswith('or unset it for the default') and '\n' not in message


def test_settings_of_the_vision_encoder_are_read():
    env = {'VISION': 'graphs', 'VISION_DTYPE': 'bfloat16', 'VISION_BATCH_TILES': '32',
           'VISION_GRAPHS': '4,1,2,2', 'VISION_GRAPHS_LAZY': '1', 'FEATURE_CACHE_MB': '0'}
    found = Settings.from_env({f'LMDEPLOY_EXT_{name}': env[name] for name in env})
    assert (found.vision, found.vision_dtype) == ('graphs', 'bfloat16')
    assert found.vision_batch_tiles == 32
    assert found.vision_graphs == (1, 2, 4) and found.vision_graphs_lazy
    assert found.feature_cache_mb == 0 and found.feature_cache_host_mb is None
    assert Settings.from_env({'LMDEPLOY_EXT_VISION_GRAPHS': '2-4'}).vision_graphs == (2, 3, 4)
    with pytest.raises(SettingError, match='smaller size first'):
        Settings.from_env({'LMDEPLOY_EXT_VISION_GRAPHS': '4-2'})


def test_settings_of_the_feature_pool_are_read():
    assert Settings.from_env({}).feature_pool_full == 'wait'
    env = {'LMDEPLOY_EXT_FEATURE_POOL_ROWS': '4096', 'LMDEPLOY_EXT_FEATURE_POOL_FULL': 'stock'}
    found = Settings.from_env(env)
    assert (found.feature_pool_rows, found.feature_pool_full) == (4096, 'stock')
    with pytest.raises(SettingError, match='wait or stock'):
        Settings.from_env({'LMDEPLOY_EXT_FEATURE_POOL_FULL': 'fail'})
