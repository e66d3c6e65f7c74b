"""A whole classification job: every check before the model is loaded, then the run."""
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple, Union

from lmdeploy_ext import patching

from . import header
from .engine import Engine
from .errors import EngineError, OutputError
from .export import EXPORTS, check_writable
from .labels import Labels, check_names, resolve_labels
from .pipeline_engine import PipelineEngine, PipelineSettings
from .probability import TOP_LOGPROBS
from .prompt_layout import check_keeps_place, check_no_place
from .result_file import ResultFile
from .runner import Completion, RunSettings, run
from .server_engine import ServerEngine, ServerSettings, served_model
from .source import Inventory, Source, check_source
from .summary import Progress, Summary
from .tokenizer import ModelTokenizer, has_tokenizer


@dataclass(frozen=True)
class ServerJob:
    """Which running server to ask; see `ServerSettings`.

    Attributes:
        url, api_key, concurrency: as there.
        served_model: a name that it serves; None for its first.
        tokenizer: folder with the served model's tokenizer; None where the served name is such a
            folder.
        chat_template: as in `PipelineSettings`.
    """
    url: str
    api_key: Optional[str] = None
    served_model: Optional[str] = None
    tokenizer: Optional[str] = None
    chat_template: Optional[str] = None
    concurrency: int = 32


@dataclass(frozen=True)
class Job:
    """What to classify, with what, and where to write it.

    Attributes:
        engine: LMDeploy in this process, or a running server.
        labels: the possible answers.
        output: the result file; taken up where it exists.
        run: prompt and limits.
        exports: `csv` or `parquet`, and a path, for each further file to write at the end.
        allow_missing: whether missing files become error rows.
        overwrite, retry_errors: see `ResultFile`.
        progress: whether a bar on stderr shows how far it is.
    """
    engine: Union[PipelineSettings, ServerJob]
    labels: Tuple[str, ...]
    output: Path
    run: RunSettings = field(default_factory=RunSettings)
    exports: Tuple[Tuple[str, Path], ...] = ()
    allow_missing: bool = False
    overwrite: bool = False
    retry_errors: bool = False
    progress: bool = False


def execute(job: Job,
            source: Source,
            on_completion: Optional[Callable[[Completion], None]] = None) -> Summary:
    """Classify the images of `source`; Ctrl-C ends it early but cleanly.

    Checks go from cheap to dear: labels, source, output, server, tokenizer; then the model is
    loaded.

    Args:
        on_completion: called with each row that has been written, on the engine's thread.

    Raises:
        ClassifyError: a check has failed, or the run cannot go on. Rows so far are written.
    """
    check_names(job.labels)
    target = _Target.of(job.engine)
    inventory = check_source(source, job.allow_missing, need_prompt=not job.run.prompt,
                             prompt_first=job.run.prompt_first)
    if job.run.prompt_first:
        check_no_place(job.run.prompt, 'the prompt')
        check_keeps_place(target.tokenizer)
    _check_paths(job, source)
    identity = header.identity(target.model, job.run.prompt, job.labels, {
        **target.engine.settings(),
        **_run_settings(job.run)
    })
    with ResultFile(job.output, identity, overwrite=job.overwrite,
                    retry_errors=job.retry_errors) as result:
        tokenizer = ModelTokenizer(target.tokenizer, job.engine.chat_template)
        labels = resolve_labels(job.labels, tokenizer)
        with target.engine as engine:
            result.begin(header.complete(identity, engine.details(), target.patches()))
            summary = _run(job, source, inventory, engine, labels, result, on_completion)
    if not summary.interrupted:
        for kind, path in job.exports:
            EXPORTS[kind](job.output, path)
    return summary


def _run(job: Job, source: Source, inventory: Inventory, engine: Engine, labels: Labels,
         result: ResultFile, on_completion: Optional[Callable[[Completion], None]]) -> Summary:
    """The run itself, with its progress bar."""
    before = sum(item.id in result.done for item in source) if len(result.done) else 0
    interrupted = False
    with closing(Progress(inventory.total, before, shown=job.progress)) as progress:

        def note(completion: Completion) -> None:
            progress.add(completion)
            if on_completion is not None:
                on_completion(completion)

        try:
            run(source, engine, labels, result, job.run, note)
        except KeyboardInterrupt:
            interrupted = True
    return progress.summary(job.output, result.tally, interrupted)


@dataclass(frozen=True)
class _Target:
    """What is asked.

    Attributes:
        engine: not yet started.
        model: how a header names it.
        tokenizer: folder of its tokenizer.
    """
    engine: Engine
    model: Dict[str, Any]
    tokenizer: str

    @classmethod
    def of(cls, settings: Union[PipelineSettings, ServerJob]) -> '_Target':
        """Look up what `settings` name.

        Raises:
            EngineError: there is no such model, or no such server.
        """
        if isinstance(settings, PipelineSettings):
            _check_model(settings.model)
            return cls(PipelineEngine(settings), _model(settings.model, settings.model),
                       settings.model)
        name = served_model(settings.url, settings.api_key, settings.served_model)
        folder = settings.tokenizer or name
        if not has_tokenizer(folder):
            raise EngineError(f'no tokenizer in {folder!r}; labels are told apart by their first '
                              f'token: give the served model\'s folder, or a copy of its '
                              f'tokenizer files and config.json, as --tokenizer')
        server = ServerSettings(settings.url, name, settings.api_key, settings.concurrency)
        return cls(ServerEngine(server), _model(name, folder), folder)

    def patches(self) -> Optional[Dict[str, str]]:
        """State of each patch by name; None where another process applies them."""
        if isinstance(self.engine, ServerEngine):
            return None
        return {row['name']: row['state'] for row in patching.status()}


def _check_paths(job: Job, source: Source) -> None:
    """Check that the exports can be written, and that no output takes the input's place."""
    named = [Path(source.name), job.output, *(path for _, path in job.exports)]
    resolved = [path.resolve() for path in named]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise OutputError(
                f'{named[number]} is named twice, as input or output; choose another '
                f'path for one of them')
    for _, path in job.exports:
        check_writable(path)


def _check_model(folder: str) -> None:
    if not Path(folder, 'config.json').is_file():
        found = 'it has no config.json' if Path(folder).is_dir() else 'there is no such folder'
        raise EngineError(f'{folder} is no model: {found}; give the folder of a checkpoint, for '
                          f'example eval/demo/model, as --model')


def _model(name: str, folder: str) -> Dict[str, Any]:
    return {'path': name, 'fingerprint': header.fingerprint(Path(folder))}


def _run_settings(settings: RunSettings) -> Dict[str, Any]:
    """The part of the settings that decides answers."""
    return {
        'max_new_tokens': settings.max_new_tokens,
        'max_dynamic_patch': settings.max_dynamic_patch,
        # null as in files that are older than this setting
        'prompt_first': settings.prompt_first or None,
        'top_logprobs': TOP_LOGPROBS
    }
