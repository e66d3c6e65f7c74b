"""Batch classification: images in, one row an image out. See docs/architecture.md.

    source = open_source(['photos/'])
    job = Job(PipelineSettings('eval/demo/model'), ('yes', 'no'), Path('rows.jsonl'),
              RunSettings(prompt='Is there a bed? Answer yes or no.'))
    summary = execute(job, source)
    for row in read_rows(job.output): ...

`import lmdeploy_ext.autopatch` first. `run` is the part of `execute` behind its checks.
"""
from .errors import ClassifyError, EngineError, ImageError, LabelError, OutputError, SourceError
from .export import export_csv, export_parquet
from .item import Item
from .job import Job, ServerJob, execute
from .labels import Label, Labels, parse_labels, resolve_labels
from .pipeline_engine import PipelineEngine, PipelineSettings
from .result_file import ResultFile, read_header, read_rows
from .row import Row
from .runner import Completion, RunSettings, run
from .server_engine import ServerEngine, ServerSettings, served_model
from .source import Source, check_source, open_source
from .summary import Summary
from .tokenizer import ModelTokenizer
