"""Start a run folder, or take up an interrupted run in it."""
import shutil
from dataclasses import asdict, fields
from typing import Any, Dict, List, Sequence

from .errors import EvalError
from .provenance import commit, provenance
from .run_folder import LabelledImage, RunFolder
from .settings import EvalSettings
from .variants import Variant


def open_run(folder: RunFolder, settings: EvalSettings, variants: Sequence[Variant],
             images: Sequence[LabelledImage], overwrite: bool) -> None:
    """Start a run folder, or check that it holds this very run.

    A run that goes on at another commit says so: run.json lists each such commit in `resumed`.

    Args:
        overwrite: whether the rows of another run may be deleted.

    Raises:
        EvalError: it holds another run or other files, or cannot be written.
    """
    run = {
        'settings': dict(asdict(settings), labels=list(settings.labels)),
        'variants': {variant.name: dict(variant.env) for variant in variants},
        'variant_settings': {variant.name: dict(variant.settings) for variant in variants
                             if variant.settings},
    }
    try:
        if folder.run_file.is_file() and not overwrite:
            _take_up(folder, run, images)
            return
        if folder.run_file.is_file():
            shutil.rmtree(folder.path / 'variants', ignore_errors=True)
            folder.report_file.unlink(missing_ok=True)
        elif folder.path.exists() and any(folder.path.iterdir()):
            raise EvalError(f'{folder.path} is not empty and holds no run; choose another --out')
        folder.write_images(images)
        folder.write_run({**run, 'provenance': provenance(), 'resumed': []})
    except OSError as error:
        raise EvalError(f'cannot write {error.filename or folder.path}: {error.strerror}; '
                        f'choose another --out') from error


def _take_up(folder: RunFolder, run: Dict[str, Any], images: Sequence[LabelledImage]) -> None:
    """Check that the stored run is the one that is wanted, and note a new commit."""
    stored = folder.read_run()
    differences = _differences(stored, run)
    if not differences and folder.read_images() != list(images):
        differences = ['images or labels of the manifest']
    if differences:
        raise EvalError(f'{folder.path} holds another run ({", ".join(differences)} differ); '
                        f'choose another --out, or --overwrite to delete its rows')
    here = commit()
    if here != (stored['resumed'] or [stored['provenance']['commit']])[-1]:
        folder.write_run({**stored, 'resumed': [*stored['resumed'], here]})


def _differences(stored: Dict[str, Any], run: Dict[str, Any]) -> List[str]:
    """Names of the settings in which a stored run differs from the one that is wanted."""
    # Runs that were stored before there was a setting, or before variants had settings of their
    # own, lack the field.
    before = {field.name: field.default for field in fields(EvalSettings)}
    here, there = run['settings'], {**before, **stored['settings']}
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    same = (stored['variants'] == run['variants']
            and stored.get('variant_settings', {}) == run['variant_settings'])
    return names if same else [*names, 'variants']
