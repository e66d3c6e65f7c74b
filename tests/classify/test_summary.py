"""What a person reads at the end of a run, and while it runs."""
from dataclasses import replace

from lmdeploy_ext.classify.runner import Completion
from lmdeploy_ext.classify.summary import Progress
from lmdeploy_ext.classify.tally import Tally

from .fakes import row


def completions():
    rows = [row('a'), row('b', error='cut'), row('c', text='maybe'), row('d')]
    return [Completion(each, 0.0, 1.0, each.id == 'd') for each in rows]


def test_the_summary_counts_what_happened(tmp_path):
    progress, tally = Progress(images=6, before=2, shown=False), Tally()
    for completion in completions():
        progress.add(completion)
        tally.add(completion.row)
    summary = progress.summary(tmp_path / 'rows.jsonl', tally)
    assert (summary.images, summary.before, summary.written, summary.reused) == (6, 2, 4, 1)
    assert summary.images_per_minute > 0 and summary.tally.labels == {'是': 3}
    text = str(summary)
    assert f'{tmp_path}/rows.jsonl: 4 rows (2 from before)' in text
    assert 'labels: 是 3\nerrors: 1\noff-label: 1 answers begin with no label' in text
    assert 'identical images: 1' in text and 'interrupted' not in text
    text = str(progress.summary(tmp_path / 'rows.jsonl', tally, interrupted=True))
    assert text.endswith('interrupted: the same command goes on from here')
    progress.close()


def test_the_bar_shows_speed_errors_and_time_left(capsys):
    progress = Progress(images=6, before=2, shown=True)
    for completion in completions():
        progress.add(completion)
    progress.close()
    bar = capsys.readouterr().err
    assert '6/6' in bar and 'images/min, 1 errors' in bar and '<' in bar


def test_the_summary_tells_what_came_from_the_prefix_cache_where_that_is_known(tmp_path):
    progress, tally = Progress(images=4, before=0, shown=False), Tally()
    for completion, cached in zip(completions(), (64, None, 0, None)):
        progress.add(replace(completion, cached_tokens=cached))
    tokens = 2 * row('a').input_tokens
    text = str(progress.summary(tmp_path / 'rows.jsonl', tally))
    assert f'prefix cache: 64 of {tokens} prompt tokens ({64 / tokens:.0%})\n' in text
    progress.close()
