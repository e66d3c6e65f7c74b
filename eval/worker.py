"""The process of one variant: `python -m lmdeploy_ext.eval.worker RUN_DIR VARIANT ROUND`.

Its environment says which patches apply. What it prints goes to the variant's log; the last line
of that is the variant's error where it fails.
"""
import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
from lmdeploy_ext.classify import (ClassifyError, Completion, Job, PipelineSettings, RunSettings,
                                   Summary, execute)
from lmdeploy_ext.patching import status

from .dataset import LabelledSource
from .image_tokens import tile_tokens
from .provenance import versions, write_json
from .run_folder import RunFolder, VariantFolder, stored_records
from .settings import EvalSettings

INTERRUPTED = 130


def main(run_dir: str, variant: str, number: str) -> int:
    """Answer the images that have no row yet.

    Exit code: 0, 2 with one line on stderr, or 130 interrupted.
    """
    _log_to_stderr()
    folder = RunFolder(Path(run_dir))
    settings = own_settings(folder.read_run(), variant)
    source = LabelledSource(settings.manifest, tuple(folder.read_images()))
    try:
        summary = predict(folder.variant(variant), int(number), source, settings)
    except ClassifyError as error:
        print(error, file=sys.stderr)
        return 2
    return INTERRUPTED if summary.interrupted else 0


def own_settings(run: Mapping[str, Any], variant: str) -> EvalSettings:
    """The settings of a variant: those of the run, but for its own."""
    stored = run['settings']
    own = run.get('variant_settings', {}).get(variant, {})
    return EvalSettings(**{**stored, **own, 'labels': tuple(stored['labels'])})


def predict(own: VariantFolder, number: int, source: LabelledSource,
            settings: EvalSettings) -> Summary:
    """Answer the images of `source` that a round has no row for yet.

    Args:
        own: where rows, times and patch status go.

    Raises:
        ClassifyError: the settings, the engine or the files are wrong; rows so far are kept.
    """
    engine = PipelineSettings(model=settings.model,
                              backend=settings.backend,
                              device=settings.device,
                              tp=settings.tp,
                              session_len=settings.session_len,
                              vision_batch=settings.vision_batch,
                              prefix_caching=settings.prefix_caching,
                              chat_template=chat_template(settings),
                              concurrency=settings.concurrency)
    asked = RunSettings(prompt=settings.prompt,
                        max_new_tokens=settings.max_new_tokens,
                        max_dynamic_patch=settings.max_dynamic_patch,
                        prompt_first=settings.prompt_first)
    # A file that has vanished since is an error row, as an unreadable one is.
    job = Job(engine, settings.labels, own.rows_file(number), asked, allow_missing=True)
    try:
        with recorded(own.times_file(number)) as record:
            return execute(job, source, record)
    finally:
        # At the end, since some patches apply only when the first image is there.
        write_json(own.process_file, {'patches': status(), 'versions': versions(),
                                      'tile_tokens': tile_tokens(settings.model)})


def chat_template(settings: EvalSettings) -> Optional[str]:
    """The chat template's name, the same for all variants; None for LMDeploy's own choice.

    Upstream goes by the folder's name, which is right only with a patch that `stock` leaves off.
    """
    if settings.chat_template is not None:
        return settings.chat_template
    from lmdeploy.model import MODELS

    from lmdeploy_ext.vl.chat_template import choose_template
    return choose_template(settings.model, MODELS.module_dict)


@contextmanager
def recorded(path: Path) -> Iterator[Callable[[Completion], None]]:
    """A function that stores when each answer was complete, as a new session of the file."""
    session = 1 + max((record['session'] for record in stored_records(path)), default=-1)
    _cut_half_line(path)
    with open(path, 'a', encoding='utf-8') as file:

        def record(completion: Completion) -> None:
            line = {
                'id': completion.row.id,
                'session': session,
                'started': completion.started,
                'finished': completion.finished,
                'computed': completion.row.error is None and not completion.reused,
            }
            file.write(json.dumps(line, ensure_ascii=False) + '\n')
            file.flush()

        yield record


def _cut_half_line(path: Path) -> None:
    """Remove the half-written last line that a killed process left."""
    if path.is_file():
        content = path.read_bytes()
        if not content.endswith(b'\n'):
            path.write_bytes(content[:content.rfind(b'\n') + 1])


def _log_to_stderr() -> None:
    """Log what this project does. Handlers of the root logger are muted by LMDeploy."""
    logger = logging.getLogger('lmdeploy_ext')
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
