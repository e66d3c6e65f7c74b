"""`make bench-prefix`: the prefix cache off against on, in one run.

    python -m lmdeploy_ext.eval.bench.prefix [--model DIR] [--backend turbomind|pytorch]
        [--rounds 3] [--quick]

Two engines of the same model, each in a process of its own, take turns: eight questions about one
image, an instruction of 1,000 tokens before many images, and images with nothing in common. In a
round both get the same images, which are new. Without --model: random weights of InternVL2-8B's
shape on a GPU, else the model of the demo. Beside the JSON file it writes the table (.md).
"""
import argparse
import multiprocessing
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import psutil

from lmdeploy_ext.config import PREFIX, SettingError, Settings

from ..errors import EvalError
from ..provenance import REPOSITORY, gpus, machine, write_result
from ..settings import check_model
from .measured import measured_commit, slug
from .prefix_process import EngineFailed, EngineProcess, EngineSettings
from .prefix_rounds import run_rounds
from .prefix_rows import result_rows, targets
from .prefix_scope import FULL, OFF, ON, QUICK, Scope
from .prefix_table import table

RESULTS = REPOSITORY / 'eval' / 'results'
DEMO_MODEL = REPOSITORY / 'eval' / 'demo' / 'model'
QUICK_OUT = REPOSITORY / 'eval' / 'runs' / 'bench-prefix-quick.json'
BACKENDS = ('turbomind', 'pytorch')
RANDOM_SHAPE = '8b'
INTERRUPTED = 130

Tell = Callable[[str], None]


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code: 0 measured (targets may be missed: the table says so), 1 a part was not measured
    (the table says why), 2 wrong input or nothing measured, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    # a polite kill ends the engines as Ctrl-C does, instead of leaving them behind
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        source = measured_commit(arguments.commit)
        scope = _scope(arguments)
        rows = _measured(arguments, scope)
    except EvalError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; nothing was written', file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    out = arguments.out or (QUICK_OUT if arguments.quick else RESULTS / f'{_name(arguments)}.json')
    typed = ['python', '-m', f'{__package__}.prefix', *(sys.argv[1:] if argv is None else argv)]
    # what the targets are about
    reached = targets(rows) if gpus() else []
    write_result(out, command=typed, commit=source, rows=rows, targets=reached)
    text = table(rows, reached)
    out.with_suffix('.md').write_text(text, encoding='utf-8')
    print(f'{text}\nresult: {out}\ntable:  {out.with_suffix(".md")}')
    return int(any(row.get('reason') for row in rows))


def run(settings: EngineSettings, folder: Path, limit: float, tell: Tell) -> List[Dict[str, Any]]:
    """Measure; returns the result's rows.

    Args:
        settings: of both engines, but for `caching`.
        folder: for logs.
        limit: seconds that an engine may take for its start, and for a scenario in a round.
        tell: is given a line for each step.

    Raises:
        EvalError: nothing was measured.
    """
    setup = _setup(settings)
    engines = {cache: EngineProcess(replace(settings, caching=cache == ON),
                                    folder / f'{cache}.log', limit) for cache in (OFF, ON)}
    about: Dict[str, Any] = {}
    starter = ThreadPoolExecutor(len(engines))
    try:
        tell('both engines start')
        starts = {cache: starter.submit(engine.start) for cache, engine in engines.items()}
        for cache, engine in engines.items():
            try:
                about = starts[cache].result()
            except EngineFailed as error:
                tell(f'cache {cache}: {error}\n{engine.log_tail()}')
            else:
                tell(f'cache {cache}: ready')
        outcomes = run_rounds(engines, settings.scope.rounds, tell)
    finally:
        for engine in engines.values():
            engine.close()
        starter.shutdown()
    if not outcomes.measured:
        raise EvalError(f'nothing was measured: {next(iter(outcomes.failed.values()))}')
    warnings = [f'cache {cache}: {warning}' for cache, engine in engines.items()
                for warning in engine.warnings]
    return [{**setup, **about, 'warnings': warnings},
            *result_rows(outcomes, settings.device)]


def _measured(arguments: argparse.Namespace, scope: Scope) -> List[Dict[str, Any]]:
    """The rows, measured in a temporary folder."""
    device = 'cuda' if gpus() else 'cpu'
    backend = arguments.backend or ('turbomind' if device == 'cuda' else 'pytorch')
    if backend == 'turbomind' and device == 'cpu':
        raise EvalError('--backend turbomind needs a GPU, and nvidia-smi lists none; '
                        'choose --backend pytorch')
    if arguments.model is not None:
        check_model(arguments.model)
    _check_settings()
    begin = time.monotonic()

    def tell(text: str) -> None:
        print(f'{time.monotonic() - begin:6.1f} s  {text}', flush=True)

    with tempfile.TemporaryDirectory(prefix='bench-prefix-') as scratch:
        model = arguments.model or str(DEMO_MODEL)
        if arguments.model is None and device == 'cuda':
            tell(f'writes a checkpoint of random weights, shape {RANDOM_SHAPE}')
            model = random_model(Path(scratch), RANDOM_SHAPE, device)
        settings = EngineSettings(model, backend, device, caching=False, scope=scope)
        return run(settings, Path(scratch), arguments.limit, tell)


def _check_settings() -> None:
    """Refuse settings of the environment under which both engines would do the same.

    Raises:
        EvalError: one of them, or one that cannot be used at all.
    """
    try:
        settings = Settings.from_env()
    except SettingError as error:
        raise EvalError(str(error)) from error
    for name, value, is_off in (('PREFIX_CACHE', settings.prefix_cache, 'off'),
                                ('VISION', settings.vision, 'off'),
                                ('FEATURE_CACHE_MB', settings.feature_cache_mb, 0)):
        if value == is_off:
            raise EvalError(f'{PREFIX}{name}={value} switches off what is to be measured; '
                            f'unset it')


def random_model(scratch: Path, shape: str, device: str) -> str:
    """Write a checkpoint of random weights, drawn on a device; returns its folder.

    Raises:
        EvalError: it cannot be written.
    """
    folder = str(scratch / f'internvl2-{shape}-random')
    # in a process that leaves no memory of the GPU behind
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
        try:
            pool.submit(_write_checkpoint, folder, shape, device).result()
        except (OSError, RuntimeError, ValueError) as error:
            raise EvalError(f'no checkpoint of random weights could be written to {folder} '
                            f'({error}); give a model with --model') from error
    return folder


def _write_checkpoint(folder: str, shape: str, device: str) -> None:
    from lmdeploy_ext.models.checkpoint import write_checkpoint
    write_checkpoint(folder, shape, device=device)


def _setup(settings: EngineSettings) -> Dict[str, Any]:
    """What the figures depend on, beside commit and versions."""
    scope = settings.scope
    found = gpus()
    return {
        'part': 'setup',
        'model': ('The model of the demo' if settings.model == str(DEMO_MODEL)
                  else Path(settings.model).resolve().name),
        'device': settings.device,
        'device_name': found[0] if found else f'{machine()["cores"]} CPU cores',
        'load': round(psutil.getloadavg()[0], 1),
        'large_pixels': list(scope.large),
        'concurrency': scope.concurrency,
        'kv_tokens': scope.kv_tokens,
        'rounds': scope.rounds
    }


def _scope(arguments: argparse.Namespace) -> Scope:
    scope = (QUICK if arguments.quick else FULL)['cuda' if gpus() else 'cpu']
    if arguments.rounds is None:
        return scope
    if arguments.rounds < 1:
        raise EvalError(f'--rounds {arguments.rounds} is too few; expected at least 1')
    return replace(scope, rounds=arguments.rounds)


def _name(arguments: argparse.Namespace) -> str:
    """'prefix-cpu' or 'prefix-h200'; with engine and model where they are not the usual ones,
    whose results stay."""
    found = gpus()
    parts = ['prefix', slug(found[0]) if found else 'cpu']
    parts += [arguments.backend] if found and arguments.backend not in (None, 'turbomind') else []
    parts += [slug(Path(arguments.model).resolve().name)] if arguments.model else []
    return '-'.join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.bench.prefix',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--model', metavar='DIR', help='model folder [random weights of the shape '
        f'{RANDOM_SHAPE}; that of the demo on a CPU]')
    add('--backend', choices=BACKENDS, help='[turbomind; pytorch on a CPU]')
    add('--rounds', type=int, metavar='R', help='[3]')
    add('--limit', type=float, metavar='SECONDS', default=300.0,
        help='for the start of an engine, and for a scenario in a round [%(default)g]')
    add('--quick', action='store_true', help='a few images, once: figures to ignore')
    add('--commit', metavar='ID',
        help='what is measured, where the code was copied without its .git')
    add('--out', type=Path, metavar='FILE', help='JSON file '
        f'[{RESULTS.relative_to(REPOSITORY)}/prefix-cpu.json, prefix-h200.json and so on; with '
        f'--quick {QUICK_OUT.relative_to(REPOSITORY)}]')
    return parser


if __name__ == '__main__':
    sys.exit(main())
