import hashlib

import pytest

from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.fingerprint import fingerprint, fingerprints
from lmdeploy_ext.patching.source import symbol_source

MODULE = '''
raise RuntimeError('a fingerprint imports nothing')
from .elsewhere import borrowed

LIMIT = 4
SIZE: int = 5


def plain(a,
          b=1):
    return a


class Outer:
    """With a docstring."""

    @property
    def size(self):
        return 1

    @size.setter
    def size(self, value):
        pass

    class Inner:

        @decorated(
            with_arguments=True)
        @staticmethod
        async def deep():
            text = """
not indented
"""
            return text


try:
    def either():
        return 1
except ImportError:
    def either():
        return 2
'''


@pytest.fixture
def root(tmp_path):
    (tmp_path / 'lmdeploy' / 'sub').mkdir(parents=True)
    (tmp_path / 'lmdeploy' / 'version.py').write_text("__version__ = '0.6.0'\n")
    (tmp_path / 'lmdeploy' / 'module.py').write_text(MODULE)
    (tmp_path / 'lmdeploy' / 'sub' / '__init__.py').write_text('def inside(): pass\n')
    return tmp_path


@pytest.mark.parametrize('target, text', [
    ('lmdeploy.module:plain', 'def plain(a,\n          b=1):\n    return a'),
    ('lmdeploy.module:LIMIT', 'LIMIT = 4'),
    ('lmdeploy.module:SIZE', 'SIZE: int = 5'),
    ('lmdeploy.sub:inside', 'def inside(): pass'),
    ('lmdeploy.module:Outer.size', '@property\ndef size(self):\n    return 1\n'
     '@size.setter\ndef size(self, value):\n    pass'),
    ('lmdeploy.module:either', 'def either():\n    return 1\ndef either():\n    return 2'),
])
def test_the_source_of_a_symbol_is_its_dedented_text(root, target, text):
    assert symbol_source(target, root) == text


def test_decorators_and_strings_belong_to_the_text(root):
    lines = symbol_source('lmdeploy.module:Outer.Inner.deep', root).split('\n')
    assert lines[0].strip() == '@decorated('
    assert 'not indented' in lines


def test_a_class_is_taken_whole(root):
    text = symbol_source('lmdeploy.module:Outer', root)
    assert text.startswith('class Outer:') and text.endswith('return text')


def test_a_fingerprint_is_the_start_of_the_sha256_of_that_text(root):
    expected = hashlib.sha256(b'def plain(a,\n          b=1):\n    return a').hexdigest()[:16]
    assert fingerprint('lmdeploy.module:plain', root) == expected


def test_only_the_symbol_itself_counts(root):
    path = root / 'lmdeploy' / 'module.py'
    before = fingerprint('lmdeploy.module:Outer.Inner.deep', root)
    path.write_text(MODULE.replace('LIMIT = 4', 'LIMIT = 5\n\n# moved\n'))
    assert fingerprint('lmdeploy.module:Outer.Inner.deep', root) == before
    path.write_text(MODULE.replace('with_arguments=True', 'with_arguments=False'))
    assert fingerprint('lmdeploy.module:Outer.Inner.deep', root) != before


def test_line_endings_do_not_count(root):
    before = fingerprint('lmdeploy.module:Outer', root)
    (root / 'lmdeploy' / 'module.py').write_bytes(MODULE.replace('\n', '\r\n').encode())
    assert fingerprint('lmdeploy.module:Outer', root) == before


@pytest.mark.parametrize('target, complaint', [
    ('lmdeploy.module:gone', 'gone is not defined in .*module.py$'),
    ('lmdeploy.module:Outer.gone', 'Outer.gone is not defined'),
    ('lmdeploy.module:borrowed', 'imported there from .elsewhere: name the defining module'),
    ('lmdeploy.gone:x', 'module lmdeploy.gone does not exist'),
    ('lmdeploy.module', 'is no target; write it as'),
    ('lmdeploy.module:', 'is no target; write it as'),
    ('lmdeploy.module:a-b', 'is no target; write it as'),
    ('torch.nn:Linear', 'is not in lmdeploy'),
])
def test_what_does_not_exist_is_an_error(root, target, complaint):
    with pytest.raises(PatchError, match=complaint):
        fingerprint(target, root)


def test_releases_with_the_same_source_share_a_fingerprint(tmp_path):
    sources = {'0.6.0': 'def f(): 1', '0.6.1': 'def f(): 1', '0.6.2': 'def f(): 2', '0.6.3': ''}
    roots = []
    for release, text in sources.items():
        package = tmp_path / release / 'lmdeploy'
        package.mkdir(parents=True)
        (package / 'version.py').write_text(f"__version__ = '{release}'\n")
        (package / 'module.py').write_text(text + '\n')
        roots.append(package.parent)
    found = fingerprints('lmdeploy.module:f', roots)
    assert list(found.values()) == ['0.6.0 to 0.6.1', '0.6.2']
    with pytest.raises(PatchError, match='g is not defined'):
        fingerprints('lmdeploy.module:g', roots)
    (roots[0] / 'lmdeploy' / 'version.py').write_text("__version__ = '0.6.5'\n")
    with pytest.raises(PatchError, match='LMDeploy 0.6.5 is not supported'):
        fingerprints('lmdeploy.module:f', roots)
