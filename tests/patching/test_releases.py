import pytest

from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.releases import (SUPPORTED, format_releases, parse_releases, release_of,
                                            require_supported)


@pytest.mark.parametrize('text, releases', [
    ('0.6.0 to 0.6.4', SUPPORTED),
    ('0.6.1', ('0.6.1', )),
    ('0.6.0 to 0.6.1, 0.6.3', ('0.6.0', '0.6.1', '0.6.3')),
    ('0.6.2 to 0.6.3', ('0.6.2', '0.6.2.post1', '0.6.3')),
])
def test_a_range_is_read_and_written_alike(text, releases):
    assert parse_releases(text) == releases
    assert format_releases(releases) == text


@pytest.mark.parametrize('text, complaint', [
    ('0.6.5', "'0.6.5' in '0.6.5' is not a supported release"),
    ('0.6.0 to 0.7', "'0.7' in '0.6.0 to 0.7' is not a supported release"),
    ('0.6.4 to 0.6.0', 'is no range of releases'),
    ('0.6.0 to 0.6.1 to 0.6.2', 'is no range of releases'),
    ('', "'' in '' is not a supported release"),
])
def test_a_wrong_range_is_refused(text, complaint):
    with pytest.raises(PatchError, match=complaint):
        parse_releases(text)


def test_the_release_is_read_from_the_file(tmp_path):
    (tmp_path / 'lmdeploy').mkdir()
    version = tmp_path / 'lmdeploy' / 'version.py'
    version.write_text("import nothing_that_exists\n__version__ = '0.6.2.post1'\n")
    assert release_of(tmp_path) == '0.6.2.post1'
    version.write_text('version = 1\n')
    with pytest.raises(PatchError, match='names no __version__'):
        release_of(tmp_path)
    version.unlink()
    with pytest.raises(PatchError, match='give the folder that holds lmdeploy/'):
        release_of(tmp_path)


def test_another_release_is_refused_in_one_line():
    require_supported('0.6.2.post1')
    said = 'LMDeploy 0.6.5 is not supported.*0.6.0 to 0.6.4'
    with pytest.raises(PatchError, match=said) as caught:
        require_supported('0.6.5')
    assert '\n' not in str(caught.value)
