"""`make bench-qpm`: images a minute end to end, stock against ours, the variants in turn.

    python -m lmdeploy_ext.eval.bench.qpm [--model DIR] [--manifest FILE] [--rounds 3] [--quick]

By default on the demo's model and set. Three variants answer the same files in processes of their
own, round after round: stock, our image pipeline with stock's vision encoder, and everything. A
ratio is the median over rounds. Beside the JSON file it writes the table (.md).
"""
import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lmdeploy_ext.classify.errors import ClassifyError

from ..demo_run import DEMO, render_set
from ..errors import EvalError
from ..provenance import REPOSITORY, gpus, write_result
from ..runner import evaluate
from ..settings import EvalSettings
from ..variants import parse_variants
from .text_table import markdown, target_lines

OUT = REPOSITORY / 'eval' / 'results' / 'qpm.json'
QUICK_OUT = REPOSITORY / 'eval' / 'runs' / 'bench-qpm-quick.json'
IMAGES, QUICK_IMAGES = 300, 40
STOCK, IMAGES_ONLY, ALL = 'stock', 'images-only', 'patched'
VARIANTS = f'{STOCK},{IMAGES_ONLY}:LMDEPLOY_EXT_PATCHES=all:LMDEPLOY_EXT_VISION=off,{ALL}'
INTERRUPTED = 130


def main(argv: Optional[List[str]] = None) -> int:
    """Exit code: 0 measured (targets may be missed: the table says so), 2 wrong input or a variant
    that failed, 130 interrupted."""
    arguments = _parser().parse_args(argv)
    out = arguments.out or (QUICK_OUT if arguments.quick else OUT)
    try:
        report = run(arguments)
        rows = result_rows(report)
    except ClassifyError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('interrupted; the same command goes on', file=sys.stderr)
        return INTERRUPTED
    write_result(out, rows=rows, targets=targets(rows))
    text = table(rows)
    out.with_suffix('.md').write_text(text, encoding='utf-8')
    print(f'{text}\nresult: {out}\ntable:  {out.with_suffix(".md")}')
    return 0


def run(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Answer; returns the report, as in report.json.

    Raises:
        EvalError: wrong settings, or nothing was answered.
    """
    manifest = arguments.manifest
    if manifest is None:
        count = QUICK_IMAGES if arguments.quick else IMAGES
        manifest = str(render_set(DEMO / 'images', {'test': count}))
    settings = EvalSettings(model=arguments.model or str(DEMO / 'model'), manifest=manifest,
                            rounds=1 if arguments.quick else arguments.rounds,
                            concurrency=arguments.concurrency, backend=arguments.backend)
    # what a finished run measured is of another commit, maybe
    finished = (arguments.work / 'report.json').is_file()
    return evaluate(settings, parse_variants(VARIANTS, bool(gpus())), arguments.work,
                    overwrite=arguments.overwrite or finished)


def result_rows(report: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """One row a variant.

    Raises:
        EvalError: a variant failed, or answered too few images to time.
    """
    ratios = {(each['first'], each['second']): each for each in report['comparisons']}
    rows = []
    for variant in report['variants']:
        name, timed = variant['name'], variant['throughput']
        if variant['error'] or timed['qpm'] is None:
            raise EvalError(f'variant {name}: {variant["error"] or timed["reason"]}')
        row = {'variant': name, 'images': variant['images'], 'qpm': timed['qpm'],
               'tokens': variant['input_tokens']['mean'],
               'accuracy': variant['answers']['accuracy']['value']}
        against = ratios.get((STOCK, name))
        if against is not None:
            row['ratio_to_stock'] = against['qpm_ratio']['value']
            row['changed_answers'] = against['all_images']['changed']
        rows.append(row)
    return rows


def targets(rows: Sequence[Mapping[str, Any]]) -> List[Dict[str, Any]]:
    """`{'name', 'want', 'got', 'met'}` of each figure."""
    of = {row['variant']: row for row in rows}
    found = [('patched to stock, images a minute', 2, of[ALL]['ratio_to_stock']),
             ('patched to the image pipeline alone, images a minute', 1.3,
              of[ALL]['ratio_to_stock'] / of[IMAGES_ONLY]['ratio_to_stock'])]
    return [{'name': name, 'want': want, 'got': round(got, 3), 'met': got >= want}
            for name, want, got in found]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows and targets as Markdown."""
    lines = [['variant', 'images/min', 'times stock', 'tokens an image', 'accuracy %',
              'answers changed']]
    lines += [[row['variant'], f'{row["qpm"]:.0f}', f'{row.get("ratio_to_stock", 1):.2f}',
               f'{row["tokens"]:.0f}', f'{100 * row["accuracy"]:.1f}',
               str(row.get('changed_answers', 0))] for row in rows]
    return '\n'.join(['# Images a minute, end to end', '', *markdown(lines), '',
                      *markdown(target_lines(targets(rows))), ''])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m lmdeploy_ext.eval.bench.qpm',
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--model', metavar='DIR', help='model folder [that of the demo]')
    add('--manifest', metavar='FILE', help='labelled images [those of the demo]')
    add('--rounds', type=int, default=3, help='[%(default)s]')
    add('--concurrency', type=int, default=8, help='requests in flight [%(default)s]')
    add('--backend', default='auto', help='auto, pytorch or turbomind [%(default)s]')
    add('--work', type=Path, metavar='DIR', default=Path('eval/runs/qpm'),
        help='folder of the run; an interrupted one goes on there, a finished one begins anew '
        '[%(default)s]')
    add('--overwrite', action='store_true', help='delete the rows of another run in --work')
    add('--quick', action='store_true', help='a few images, once: figures to ignore')
    add('--out', type=Path, metavar='FILE', help=f'JSON file [{OUT.relative_to(REPOSITORY)}]')
    return parser


if __name__ == '__main__':
    sys.exit(main())
