import dataclasses

import pytest

from lmdeploy_ext.patching import PatchError, patch, seam
from lmdeploy_ext.patching.catalogue import discover, find_patch
from lmdeploy_ext.patching.selection import select, without

GOOD = {
    'target': 'lmdeploy.vl.engine:ImageEncoder.forward',
    'group': 'correctness',
    'upstream': {'0123456789abcdef': '0.6.0 to 0.6.1', 'fedcba9876543210': '0.6.3'},
    'why': 'It hangs.',
    'remove_when': 'It does not hang.',
}  # yapf: disable
PATCH_FILE = '''
from lmdeploy_ext.patching import patch


@patch(target={target!r}, group={group!r}, upstream={{'0123456789abcdef': '0.6.0'}},
       why='It is so.', remove_when='It is not so.')
def build(original):
    return original
'''
SEAM_FILE = '''
from lmdeploy_ext.patching import seam


@seam(after='lmdeploy.model', why='It registers.')
def register(module):
    pass
'''


def build(original):
    return 'new ' + original


def test_a_declaration_carries_everything_and_builds_the_replacement():
    guards = {'lmdeploy.vl.engine:Record': {'1111111111111111': '0.6.0 to 0.6.4'}}
    declared = patch(**GOOD, guards=guards)(build)
    assert declared.name == 'test_declaration'  # the file's
    assert declared.module == 'lmdeploy.vl.engine'
    assert declared.releases == '0.6.0 to 0.6.1, 0.6.3'
    assert declared.upstream['0.6.1'] == '0123456789abcdef'
    assert declared.guards['lmdeploy.vl.engine:Record']['0.6.4'] == '1111111111111111'
    assert declared('old') == 'new old'


@pytest.mark.parametrize('change, complaint', [
    ({'target': 'lmdeploy.vl.engine.ImageEncoder'}, 'is no target'),
    ({'target': 'torch:add'}, 'is not in lmdeploy'),
    ({'group': 'misc'}, "group 'misc' does not exist; those are cpu, correctness, speed"),
    ({'why': ' '}, 'why is empty'),
    ({'remove_when': ''}, 'remove_when is empty'),
    ({'signature_change': ''}, 'signature_change is empty'),
    ({'upstream': {}}, 'has no fingerprint; .*patching fingerprint'),
    ({'upstream': {'0123': '0.6.0'}}, "'0123' is not 16 hex digits"),
    ({'upstream': {'0123456789abcdef': '0.6.9'}}, "patch test_declaration: '0.6.9' in"),
    ({'upstream': {'0123456789abcdef': '0.6.0', 'fedcba9876543210': '0.6.0 to 0.6.1'}},
     'two fingerprints for 0.6.0'),
    ({'guards': {'lmdeploy.vl.engine:Record': {'1111111111111111': '0.6.0'}}},
     'guard lmdeploy.vl.engine:Record covers 0.6.0, the patch 0.6.0 to 0.6.1, 0.6.3'),
])
def test_an_incomplete_declaration_is_refused(change, complaint):
    with pytest.raises(PatchError, match=complaint):
        patch(**{**GOOD, **change})(build)


@pytest.mark.parametrize('after, why, complaint', [
    ('transformers', 'It registers.', 'is no module of lmdeploy'),
    ('lmdeploy.model:MODELS', 'It registers.', 'is no module of lmdeploy'),
    ('lmdeploy.model', '', 'why is empty'),
])
def test_an_incomplete_seam_is_refused(after, why, complaint):
    with pytest.raises(PatchError, match=complaint):
        seam(after=after, why=why)(build)


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    """A function that makes a catalogue of files and returns what is discovered."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, files):
        (tmp_path / name).mkdir()
        for file, text in {'__init__': '', **files}.items():
            (tmp_path / name / f'{file}.py').write_text(text)
        return discover(name)

    return make


def test_a_file_declares_a_function_of_its_own(catalogue):
    text = SEAM_FILE.split('@')[0] + 'from shutil import which\n'
    text += 'borrowed = seam(after="lmdeploy.model", why="It registers.")(which)\n'
    with pytest.raises(PatchError, match='borrowed.it declares a function of shutil.py'):
        catalogue('borrowed', {'it': text})


def patch_file(target, group='cpu'):
    return PATCH_FILE.format(target=target, group=group)


def test_every_file_is_found_under_its_name(catalogue):
    entries = catalogue('found', {'b_seam': SEAM_FILE, 'a_patch': patch_file('lmdeploy.a:f')})
    assert [entry.name for entry in entries] == ['a_patch', 'b_seam']
    assert find_patch('a_patch', entries).target == 'lmdeploy.a:f'
    with pytest.raises(PatchError, match="no patch 'a_pach'; did you mean 'a_patch'"):
        find_patch('a_pach', entries)


def test_a_file_declares_exactly_one_thing(catalogue):
    with pytest.raises(PatchError, match='nothing.nothing declares 0 patches or seams'):
        catalogue('nothing', {'nothing': 'x = 1\n'})
    with pytest.raises(PatchError, match='twice.both declares 2 patches or seams'):
        catalogue('twice', {'both': patch_file('lmdeploy.a:f') + SEAM_FILE})


@pytest.mark.parametrize('one, other', [('lmdeploy.a:f', 'lmdeploy.a:f'),
                                        ('lmdeploy.a:C', 'lmdeploy.a:C.f')])
def test_two_patches_of_one_symbol_are_refused(catalogue, one, other):
    with pytest.raises(PatchError, match='patches x and y both change lmdeploy.a:'):
        catalogue(f'clash_{len(other)}', {'x': patch_file(one), 'y': patch_file(other)})


@pytest.fixture
def entries(catalogue):
    return catalogue('selectable', {
        'fast_resize': patch_file('lmdeploy.a:f', 'speed'),
        'no_gpu': patch_file('lmdeploy.b:f', 'cpu'),
        'no_stream': patch_file('lmdeploy.c:f', 'cpu'),
        'register': SEAM_FILE,
    })


@pytest.mark.parametrize('text, names', [
    ('all', 'fast_resize no_gpu no_stream'),
    ('none', ''),
    ('cpu', 'no_gpu no_stream'),
    ('cpu,fast_resize', 'fast_resize no_gpu no_stream'),
    (' no_gpu , fast_resize ', 'fast_resize no_gpu'),
    ('-no_gpu', 'fast_resize no_stream'),
    ('-cpu', 'fast_resize'),
    ('-no_gpu,cpu', 'no_stream'),
    ('all,-fast_resize', 'no_gpu no_stream'),
    ('none,no_gpu', 'no_gpu'),
])
def test_the_setting_selects(entries, text, names):
    assert select(text, entries) == set(names.split())


@pytest.mark.parametrize('text, names', [
    ('speed', 'fast_resize no_stream'),
    ('fast_resize', 'fast_resize no_stream'),
    ('speed,-no_stream', 'fast_resize'),
    ('speed,-cpu', 'fast_resize'),
    ('all,-speed', 'no_gpu no_stream'),
])
def test_what_a_patch_needs_is_selected_with_it_unless_left_out(entries, text, names):
    entries = [dataclasses.replace(entry, needs=('no_stream', ))
               if entry.name == 'fast_resize' else entry for entry in entries]
    assert select(text, entries) == set(names.split())


@pytest.mark.parametrize('text, complaint', [
    ('no_gqu', "names 'no_gqu', which does not exist; did you mean 'no_gpu'\\? Known: .*speed"),
    ('-fast', "names 'fast', which does not exist"),
    ('-all', "leaves out 'all'"),
    ('register', "names 'register', which is a seam"),
    ('-register', "names 'register', which is a seam"),
    ('', 'LMDEPLOY_EXT_PATCHES is empty; unset it, or set it to all or none'),
    (' , ', 'LMDEPLOY_EXT_PATCHES is empty'),
])
def test_a_name_that_cannot_be_selected_is_refused(entries, text, complaint):
    with pytest.raises(PatchError, match=complaint):
        select(text, entries)


@pytest.mark.parametrize('text', ['all', 'cpu', '-no_stream'])
def test_a_setting_can_be_narrowed_by_one(entries, text):
    assert select(without(text, 'no_gpu'), entries) == select(text, entries) - {'no_gpu'}
