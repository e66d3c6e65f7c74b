#!/usr/bin/env python
"""Label images with a vision-language model: one JSON row an image.

    scripts/classify.py photos/ --model eval/demo/model --prompt 'A bed? Answer yes or no.' \\
        --labels yes,no --output rows.jsonl
"""
import argparse
import math
import sys
from pathlib import Path
from typing import List, Optional, Union

import lmdeploy_ext.autopatch  # noqa: F401 before anything imports LMDeploy
from lmdeploy_ext.classify import (ClassifyError, Job, PipelineSettings, RunSettings, ServerJob,
                                   execute, open_source, parse_labels)
from lmdeploy_ext.classify.pipeline_engine import BACKENDS, DEVICES
from lmdeploy_ext.classify.prefix_caching import prefix_caching_is_safe
from lmdeploy_ext.config import SettingError, api_key
from lmdeploy_ext.patching import PatchError

DONE, SOME_FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
EPILOG = """
inputs: a folder (all image files below it), a glob pattern, image files, a CSV or JSONL manifest
(image, relative to it, and optional id, label, split), or an OpenAI batch JSONL file (custom_id,
body.messages).

output: the first line is a header; then {"id", "path", "label", "probabilities", "text",
"input_tokens", "output_tokens", "seconds", "error"} for each image, in the order of the input. The
same command goes on where it was interrupted.

exit code: 0 all images have a label, 1 some have an error instead, 2 wrong input or the engine
failed, 130 interrupted.
"""


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; returns its exit code."""
    args = _parser().parse_args(arguments)
    try:
        source = open_source(args.inputs, args.split)
        summary = execute(_job(args), source)
    except (ClassifyError, PatchError, SettingError) as error:
        print(f'classify: {error}', file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print('classify: interrupted before the first image', file=sys.stderr)
        return INTERRUPTED
    if not args.quiet:
        print(summary, file=sys.stderr)
    if summary.interrupted:
        return INTERRUPTED
    return SOME_FAILED if summary.tally.errors else DONE


def _job(args: argparse.Namespace) -> Job:
    exports = [('csv', args.csv), ('parquet', args.parquet)]
    return Job(engine=_engine(args),
               labels=parse_labels(args.labels),
               output=args.output,
               run=RunSettings(prompt=args.prompt,
                               max_new_tokens=args.max_new_tokens,
                               max_dynamic_patch=args.max_dynamic_patch,
                               prompt_first=args.prompt_first,
                               timeout=args.timeout),
               exports=tuple((kind, path) for kind, path in exports if path is not None),
               allow_missing=args.allow_missing,
               overwrite=args.overwrite,
               retry_errors=args.retry_errors,
               progress=not args.quiet)


def _engine(args: argparse.Namespace) -> Union[PipelineSettings, ServerJob]:
    if args.server is not None:
        return ServerJob(url=args.server,
                         api_key=args.api_key or api_key(),
                         served_model=args.served_model,
                         tokenizer=args.tokenizer,
                         chat_template=args.chat_template,
                         concurrency=args.concurrency)
    return PipelineSettings(model=args.model,
                            backend=args.backend,
                            device=args.device,
                            tp=args.tp,
                            session_len=args.session_len,
                            vision_batch=args.vision_batch,
                            chat_template=args.chat_template,
                            concurrency=args.concurrency,
                            prefix_caching=args.prefix_caching
                            or (args.prompt_first and prefix_caching_is_safe()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description='Label images with a vision-language model.',
                                     epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('inputs', nargs='+', metavar='INPUT', help='images; see below')
    parser.add_argument('--labels', required=True, help='possible answers: yes,no')
    parser.add_argument('--prompt',
                        help='the question; without it, each request of an OpenAI '
                        'batch file is asked its own')
    parser.add_argument('--output',
                        required=True,
                        type=Path,
                        metavar='FILE',
                        help='result file (JSONL); taken up again where it exists')
    _add_input_options(parser.add_argument_group('input and output'))
    _add_question_options(parser.add_argument_group('question'))
    _add_engine_options(parser)
    return parser


def _add_input_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument('--split', help='only rows of this split of a manifest')
    group.add_argument('--allow-missing',
                       action='store_true',
                       help='missing files become error rows, not an error at the start')
    group.add_argument('--retry-errors',
                       action='store_true',
                       help='try images again that have an error row')
    group.add_argument('--overwrite',
                       action='store_true',
                       help='throw away the result file that is there')
    group.add_argument('--csv', type=Path, metavar='FILE', help='write the rows as CSV too')
    group.add_argument('--parquet',
                       type=Path,
                       metavar='FILE',
                       help='write the rows as Parquet too')
    group.add_argument('--quiet', action='store_true', help='no progress bar, no summary')


def _add_question_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument('--max-new-tokens',
                       type=_positive,
                       metavar='N',
                       help='answer tokens at most (default: those of the longest label)')
    group.add_argument('--max-dynamic-patch',
                       type=_positive,
                       metavar='N',
                       help='tiles of an image at most (default: the model\'s own)')
    group.add_argument('--prompt-first',
                       action='store_true',
                       help='the prompt before the image, so that what all prompts begin with is '
                       'computed once; switches --prefix-caching on. Not every model answers as '
                       'well as with the image first: compare on labelled images')
    group.add_argument('--chat-template',
                       metavar='NAME',
                       help='LMDeploy\'s name or a JSON file (default: chosen by the model)')
    group.add_argument('--timeout',
                       type=_seconds,
                       default=600.0,
                       metavar='SECONDS',
                       help='for one answer (default: %(default)g)')


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group('engine')
    which = group.add_mutually_exclusive_group(required=True)
    which.add_argument('--model', help='model folder, run in this process')
    which.add_argument('--server', metavar='URL', help='a running `lmdeploy serve api_server`')
    group.add_argument('--concurrency',
                       type=_positive,
                       default=32,
                       metavar='N',
                       help='images in flight (default: %(default)s)')
    own = parser.add_argument_group('with --model')
    own.add_argument('--backend', choices=BACKENDS, default='auto')
    own.add_argument('--device', choices=DEVICES, default='auto')
    own.add_argument('--tp',
                     type=_positive,
                     default=1,
                     metavar='N',
                     help='GPUs that the language model is split over')
    own.add_argument('--session-len',
                     type=_positive,
                     metavar='N',
                     help='tokens of prompt, image and answer at most')
    own.add_argument('--vision-batch',
                     type=_positive,
                     default=1,
                     metavar='N',
                     help='images that stock\'s vision encoder is given at once '
                     '(LMDEPLOY_EXT_VISION=off)')
    own.add_argument('--prefix-caching',
                     action='store_true',
                     help='keep what is computed for prompts that begin the same')
    server = parser.add_argument_group('with --server')
    server.add_argument('--served-model', metavar='NAME', help='default: the server\'s first')
    server.add_argument('--tokenizer',
                        metavar='FOLDER',
                        help='the served model\'s tokenizer files and config.json (default: the '
                        'served name, where that is a folder here)')
    server.add_argument('--api-key', help='default: LMDEPLOY_EXT_API_KEY')


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'{text} is not 1 or more')
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f'{text} is not a number of seconds above 0')
    return value


if __name__ == '__main__':
    sys.exit(main())
