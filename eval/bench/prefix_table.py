"""The table of `bench-prefix` as Markdown."""
from typing import Any, List, Mapping, Sequence

from .prefix_rows import FEATURES
from .prefix_scope import INSTRUCTION, QUESTIONS, UNIQUE
from .text_table import markdown, target_lines

Rows = Sequence[Mapping[str, Any]]
TITLES = {
    QUESTIONS: 'Several questions about one image',
    INSTRUCTION: 'One instruction of 1,000 tokens before all images',
    UNIQUE: 'Nothing in common'
}
ENGINES = {'turbomind': 'TurboMind', 'pytorch': 'the PyTorch engine'}


def table(rows: Rows, targets: Sequence[Mapping[str, Any]]) -> str:
    """All of a result but where it comes from."""
    setup = next(row for row in rows if row['part'] == 'setup')
    lines = ['# The prefix cache, off against on', '',
             f'{setup["model"]}, {ENGINES[setup["backend"]]} on {setup["device_name"]}, '
             f'{setup["concurrency"]} requests in flight, a KV cache of {setup["kv_tokens"]} '
             f'tokens; load of the machine at the start {setup["load"]}. The feature cache of the '
             f'vision encoder is on but where a line says otherwise.']
    for part in (QUESTIONS, INSTRUCTION, UNIQUE):
        own = [row for row in rows if row['part'] == part]
        lines += ['', f'## {TITLES[part]}', '',
                  *markdown((_question_lines if part == QUESTIONS else _speed_lines)(own))]
    lines += _feature_lines(rows)
    reasons = [f'- {row["part"]}, cache {row["cache"]}: {row["reason"]}' for row in rows
               if row.get('reason')]
    reasons += [f'- {warning}' for warning in setup['warnings']]
    lines += ['', '## Not measured, or not as it should be', '', *reasons] if reasons else []
    lines += ['', *markdown(target_lines(targets))] if targets else []
    return '\n'.join([*lines, ''])


def _question_lines(rows: Rows) -> List[List[str]]:
    return [['cache', 'images', 'tokens', 'first question, ms to the first token',
             'questions 2 to 8', 'to the first', 'tokens from the cache']] + [
        [row['cache'], str(row['images']), f'{row["input_tokens"]:.0f}',
         f'{row["first_ms"]:.1f}', f'{row["later_ms"]:.1f}', f'{row["ratio"]:.3f}',
         _percent(row['cached_share'])] for row in rows if 'first_ms' in row]


def _speed_lines(rows: Rows) -> List[List[str]]:
    return [['cache', 'images', 'tokens', 'images/min', 'each round', 'times off',
             'tokens from the cache']] + [
        [row['cache'], str(row['requests']), f'{row["input_tokens"]:.0f}', f'{row["qpm"]:.0f}',
         ', '.join(f'{qpm:.0f}' for qpm in row['qpm_rounds']),
         '' if row['ratio'] is None else f'{row["ratio"]:.3f}', _percent(row['cached_share'])]
        for row in rows if 'qpm' in row]


def _feature_lines(rows: Rows) -> List[str]:
    lines = []
    for row in rows:
        if row['part'] != FEATURES:
            continue
        lines = ['', f'With the cache on, the features of {100 * row["on_gpu_share"]:.1f} % of '
                 f'{row["requests"]} images stayed on the GPU.']
        if row['virtual_share'] is not None:
            lines[-1] += (f' {100 * row["virtual_share"]:.1f} % of the requests had virtual '
                          f'tokens.')
    return lines


def _percent(share: Any) -> str:
    return '' if share is None else f'{100 * share:.1f} %'
