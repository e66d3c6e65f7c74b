"""The server says at start what it runs with."""
from lmdeploy_ext.serve.startup_log import summary


def row(name, state, kind='patch'):
    return {'name': name, 'state': state, 'kind': kind}


def test_patches_are_grouped_by_state_and_unset_settings_are_left_out():
    rows = [row('b', 'applied'), row('a', 'applied'), row('c', 'off'), row('s', 'applied', 'seam')]
    settings = {'patches': '-c', 'cpu_kv_gb': None, 'armed': True}
    assert summary(rows, settings) == 'applied: a, b; off: c; settings: patches=-c, armed=True'
