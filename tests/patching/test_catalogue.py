"""What holds for every patch and seam in `patches/`, this release and this machine."""
import subprocess
import sys
from pathlib import Path

import pytest

import lmdeploy_ext.patches
from lmdeploy_ext.patching import Patch
from lmdeploy_ext.patching.catalogue import discover
from lmdeploy_ext.patching.drift import find_drift, unlisted
from lmdeploy_ext.patching.releases import release_of
from lmdeploy_ext.patching.source import installed_root

ENTRIES = discover()  # raises where a declaration is incomplete or clashes with another
PATCHES = [entry for entry in ENTRIES if isinstance(entry, Patch)]
FOLDER = Path(lmdeploy_ext.patches.__file__).parent
IMPORT_CATALOGUE = '''
import sys
before = set(sys.modules)
from lmdeploy_ext.patching.catalogue import discover
discover()
tops = {name.split('.')[0] for name in set(sys.modules) - before}
print(sorted(tops - set(sys.stdlib_module_names)))
'''


def by_name(entry):
    return entry.name


def test_there_is_one_declaration_for_each_file():
    files = sorted(path.stem for path in FOLDER.glob('*.py') if path.stem != '__init__')
    assert [entry.name for entry in ENTRIES] == files


def test_importing_the_catalogue_imports_only_the_standard_library():
    done = subprocess.run([sys.executable, '-c', IMPORT_CATALOGUE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['lmdeploy_ext']"


@pytest.mark.parametrize('entry', ENTRIES, ids=by_name)
def test_a_file_says_what_it_is_about_and_is_thin(entry):
    lines = (FOLDER / f'{entry.name}.py').read_text().splitlines()
    assert lines[0].startswith('"""')
    assert len(lines) <= 60  # glue: the logic lives in overlay/


@pytest.mark.parametrize('entry', ENTRIES, ids=by_name)
def test_the_reasons_are_sentences(entry):
    for text in [entry.why] + ([entry.remove_when] if isinstance(entry, Patch) else []):
        assert len(text.split()) >= 3 and '\n' not in text


def test_patches_need_patches_that_exist_and_need_none():
    """`select` looks no further than one step."""
    patches = {patch.name: patch for patch in PATCHES}
    needed = {name for patch in PATCHES for name in patch.needs}
    assert needed and all(not patches[name].needs for name in needed)


@pytest.mark.parametrize('patch', PATCHES, ids=by_name)
def test_the_source_of_the_installed_release_is_the_one_it_was_written_for(patch):
    root = installed_root()
    release = release_of(root)
    assert find_drift(patch, root, release) is None
    assert unlisted(patch, root, release) is None
