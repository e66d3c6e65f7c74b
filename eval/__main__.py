"""Command line: `python -m lmdeploy_ext.eval run|sweep|score|report|demo`."""
import argparse
import signal
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import List, Optional

from lmdeploy_ext.classify.errors import ClassifyError
from lmdeploy_ext.classify.labels import parse_labels
from lmdeploy_ext.classify.pipeline_engine import BACKENDS, DEVICES

from .compare import score
from .errors import EvalError
from .provenance import gpus
from .report import summary, write_report
from .run_folder import RunFolder
from .settings import EvalSettings
from .sweep_record import write_record

DEFAULTS = EvalSettings(model='', manifest='')
INTERRUPTED = 130


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code: 0 all fine, 1 a variant or an image failed, 2 wrong input, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    # A polite kill ends the variant's process as Ctrl-C does, instead of leaving it behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return arguments.command(arguments)
    except ClassifyError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; what is written is kept: the same command goes on from there',
              file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _sweep(arguments: argparse.Namespace) -> int:
    from .sweep_run import demo_manifest, demo_model, ready_made
    if arguments.manifest and (arguments.images, arguments.seed) != (None, None):
        raise EvalError('--images and --seed are about pictures of the demo set; with --manifest '
                        'use --limit')
    has_gpu = arguments.device != 'cpu' and bool(gpus())
    arguments.model = arguments.model or demo_model()
    arguments.variants = arguments.variants or ready_made(arguments.model, has_gpu)
    arguments.manifest = arguments.manifest or demo_manifest(arguments.images, arguments.seed)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from .runner import evaluate
    from .variants import parse_variants
    labels = parse_labels(arguments.labels)
    given = {field.name: getattr(arguments, field.name) for field in fields(EvalSettings)}
    given.update(labels=labels, positive=arguments.positive or labels[0])
    settings = EvalSettings(**given)
    variants = parse_variants(arguments.variants, settings.device != 'cpu' and bool(gpus()))
    report = evaluate(settings,
                      variants,
                      arguments.out,
                      arguments.overwrite,
                      progress=not arguments.quiet)
    return _tell(report, arguments.out)


def _demo(arguments: argparse.Namespace) -> int:
    from .demo_run import run_demo
    report = run_demo(arguments.out, progress=not arguments.quiet)
    return _tell(report, arguments.out)


def _score(arguments: argparse.Namespace) -> int:
    folder = RunFolder(arguments.run)
    report = score(folder, arguments.target_recall)
    write_report(folder)
    return _tell(report, arguments.run)


def _report(arguments: argparse.Namespace) -> int:
    folder = RunFolder(arguments.run)
    write_report(folder)
    report = folder.read_report()
    if arguments.record:
        write_record(arguments.record, report)
    return _tell(report, arguments.run)


def _tell(report: dict, folder: Path) -> int:
    """Print the table and where the rest is."""
    print(summary(report))
    picture = 'sweep.png' if report.get('sweep') else 'overview.png'
    print(f'\nreport:  {folder / "report.md"}\npicture: {folder / picture}')
    failed = any(variant['error'] or variant['unanswered'] for variant in report['variants'])
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval', description=__doc__)
    commands = parser.add_subparsers(required=True, metavar='COMMAND')
    run = commands.add_parser('run', help='predict with each variant, score, write the report')
    run.set_defaults(command=_run)
    _add_run_arguments(run)
    sweep = commands.add_parser('sweep', help='recall against image tokens: stock capped by '
                                'max_dynamic_patch, and tile policies')
    sweep.set_defaults(command=_sweep)
    _add_run_arguments(sweep, sweep=True)
    demo = commands.add_parser('demo', help='stock against patched on the demo model and set')
    demo.set_defaults(command=_demo)
    demo.add_argument('--out', type=Path, default=Path('eval/runs/demo'), metavar='DIR')
    demo.add_argument('--quiet', action='store_true', help='no progress bars')
    again = commands.add_parser('score', help='score a run again from its rows, without a model')
    again.set_defaults(command=_score)
    again.add_argument('run', type=Path, metavar='RUN_DIR')
    again.add_argument('--target-recall', type=float, metavar='SHARE',
                       help='choose the threshold for another recall')
    redraw = commands.add_parser('report', help='write report.md and the pictures anew')
    redraw.set_defaults(command=_report)
    redraw.add_argument('run', type=Path, metavar='RUN_DIR')
    redraw.add_argument('--record', type=Path, metavar='FILE',
                        help='also a sweep\'s figures and targets, as eval/results has them')
    return parser


def _add_run_arguments(parser: argparse.ArgumentParser, sweep: bool = False) -> None:
    """The flags of `run` and `sweep`; one for each field of EvalSettings, and the run's own."""
    defaults = dict(asdict(DEFAULTS), labels=','.join(DEFAULTS.labels), positive=None)
    parser.set_defaults(**defaults)
    add = parser.add_argument
    what = ' [that of the demo]' if sweep else ''
    add('--model', required=not sweep, metavar='DIR', help='model folder' + what)
    add('--manifest', required=not sweep, metavar='FILE',
        help='JSONL or CSV: id, image, label, split' + what)
    add('--variants', default=None if sweep else 'stock,patched', metavar='LIST',
        help='stock, patched, or NAME:VARIABLE=VALUE, + for a comma in the value '
        f'[{"the ready-made ones" if sweep else "%(default)s"}]')
    add('--out', required=not sweep, type=Path, metavar='DIR', default=Path('eval/runs/sweep'),
        help='folder of the run; an interrupted one goes on there')
    if sweep:
        add('--images', type=int, metavar='N',
            help='test pictures of the demo set; half as many for calibration [200]')
        add('--seed', type=int, metavar='N', help='another one draws other pictures [0]')
    add('--overwrite', action='store_true', help='delete the rows of another run in --out')
    add('--quiet', action='store_true', help='no progress bars')
    add('--prompt', help='question about each image [%(default)s]')
    add('--labels', metavar='A,B', help='all labels, the words of the manifest [%(default)s]')
    add('--positive', metavar='LABEL', help='the label whose recall counts [the first]')
    add('--target-recall', type=float, metavar='SHARE',
        help='what the threshold is chosen for [%(default)s]')
    add('--test-split', metavar='NAME', help='[%(default)s]')
    add('--calibration-split', metavar='NAME', help='[%(default)s]')
    add('--limit', type=int, metavar='N', help='at most so many images of each split')
    _add_engine_arguments(parser.add_argument_group('engine and timing'))


def _add_engine_arguments(group: 'argparse._ArgumentGroup') -> None:
    """The flags that say how LMDeploy is run and timed."""
    add = group.add_argument
    add('--concurrency', type=int, metavar='N', help='requests in flight [%(default)s]')
    add('--warmup', type=int, metavar='N',
        help='first answers of each process, left out of timing [%(default)s]')
    add('--rounds', type=int, metavar='R',
        help='how often all images are answered, the variants in turn [%(default)s]')
    add('--max-new-tokens', type=int, metavar='N', help='[those of the longest label]')
    add('--max-dynamic-patch', type=int, metavar='N',
        help='tiles of an image at most [as the model]')
    add('--prompt-first', action='store_true',
        help='the prompt before the image [a variant may say so alone: first:prompt_first=1]')
    add('--chat-template', metavar='NAME', help='[the one that config.json tells]')
    add('--backend', choices=BACKENDS, help='[%(default)s]')
    add('--device', choices=DEVICES, help='[%(default)s]')
    add('--tp', type=int, metavar='N', help='GPUs that share the language model [%(default)s]')
    add('--session-len', type=int, metavar='N', help='tokens of a request at most [as the model]')
    add('--vision-batch', type=int, metavar='N',
        help='images that stock\'s vision encoder is given at once [%(default)s]')
    add('--prefix-caching', action='store_true',
        help='keep KV blocks for prompts that begin the same [a variant may say so alone: '
        'cached:prefix_caching=1]')


if __name__ == '__main__':
    sys.exit(main())
