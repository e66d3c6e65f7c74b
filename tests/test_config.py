"""Environment variables: what is allowed, and what is said about the rest."""
import pytest

from lmdeploy_ext.config import SettingError, Settings, api_key


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
