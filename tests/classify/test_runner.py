"""The run: order, completeness, reuse, failures, interruption."""
import asyncio
import logging
import signal
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmdeploy_ext.classify.errors import EngineError
from lmdeploy_ext.classify.files import FolderSource
from lmdeploy_ext.classify.item import Item
from lmdeploy_ext.classify.result_file import ResultFile, read_rows
from lmdeploy_ext.classify.runner import RunSettings, run
from lmdeploy_ext.vl.image_limits import ImageLimits
from tests.vl.image_server import serving

from .fakes import IDENTITY, YES_NO, FakeEngine, jpeg, without_times, write_images

SETTINGS = RunSettings(prompt='?')


class ListSource:
    """Items from memory."""
    name = 'list'

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def classify(source, path, engine=None, run_settings=SETTINGS, on_completion=None):
    """Run into a new or existing result file; returns engine and tally."""
    engine = engine or FakeEngine()
    with ResultFile(path, IDENTITY) as result, engine:
        result.begin(IDENTITY)
        run(source, engine, YES_NO, result, run_settings, on_completion)
    return engine, result.tally


def test_each_image_gets_a_row_in_the_order_of_the_source(tmp_path):
    write_images(tmp_path / 'in', 30)
    delays = iter([0.05, 0.0, 0.02, 0.0, 0.0] * 6)
    engine = FakeEngine(delay=lambda question: next(delays))
    classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl', engine)
    rows = list(read_rows(tmp_path / 'out.jsonl'))
    assert [row.id for row in rows] == [f'{number:05}.jpg' for number in range(30)]
    assert {row.label for row in rows} == {'是', '否'}
    assert all(row.label == row.text and sum(row.probabilities.values()) == pytest.approx(1)
               for row in rows)
    assert all(row.error is None and row.seconds >= 0 and row.input_tokens == 70 for row in rows)


def test_the_engine_is_kept_busy_but_not_flooded(tmp_path):
    write_images(tmp_path / 'in', 40)
    engine = FakeEngine(concurrency=6, delay=lambda question: 0.01)
    classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl', engine)
    assert engine.most_in_flight == 6


def test_a_row_is_in_the_file_while_the_run_goes_on(tmp_path):
    write_images(tmp_path / 'in', 3)
    go_on = threading.Event()

    class Slow(FakeEngine):

        async def answer(self, question):
            while len(self.questions) == 2 and not go_on.is_set():
                await asyncio.sleep(0.005)
            return await super().answer(question)

    engine = Slow(concurrency=1)
    out = tmp_path / 'out.jsonl'
    thread = threading.Thread(target=classify, args=(FolderSource(tmp_path / 'in'), out, engine))
    thread.start()
    end = time.monotonic() + 60
    while not (out.exists() and len(list(read_rows(out))) == 2):
        assert time.monotonic() < end
    go_on.set()
    thread.join()
    assert len(list(read_rows(out))) == 3


def test_identical_files_are_computed_once_one_after_another_and_at_once(tmp_path):
    folder = tmp_path / 'in'
    folder.mkdir()
    for number in range(24):
        (folder / f'{number:02}.jpg').write_bytes(jpeg(number % 3))
    engine = FakeEngine(concurrency=8, delay=lambda question: 0.01)
    reused = []
    classify(FolderSource(folder),
             tmp_path / 'out.jsonl',
             engine,
             on_completion=lambda completion: reused.append(completion.reused))
    assert len(engine.questions) == 3
    assert sum(reused) == 21
    rows = list(read_rows(tmp_path / 'out.jsonl'))
    for row in rows[3:]:
        twin = rows[int(row.id[:2]) % 3]
        assert (row.label, row.probabilities) == (twin.label, twin.probabilities)


def test_the_same_image_with_another_question_is_computed_again(tmp_path):
    path = write_images(tmp_path, 1)[0]
    items = [
        Item('a', str(path), prompt='one?'),
        Item('b', str(path), prompt='two?'),
        Item('c', str(path), prompt='one?', options={'max_dynamic_patch': 3}),
        Item('d', str(path), prompt='one?')
    ]
    engine, _ = classify(ListSource(items), tmp_path / 'out.jsonl', FakeEngine(concurrency=1),
                         RunSettings(max_dynamic_patch=2))
    asked = [(question.prompt, question.options) for question in engine.questions]
    assert asked == [('one?', {
        'max_dynamic_patch': 2
    }), ('two?', {
        'max_dynamic_patch': 2
    }), ('one?', {
        'max_dynamic_patch': 3
    })]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 0.001, 0.004])), max_size=40),
       st.integers(1, 5), st.integers(0, 40))
@settings(max_examples=25,
          deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_order_and_reuse_hold_for_any_copies_delays_and_resumption(tmp_path_factory, images,
                                                                   concurrency, already):
    folder = tmp_path_factory.mktemp('any')
    paths = write_images(folder / 'in', 6)
    source = ListSource(
        [Item(f'{number}', str(paths[image])) for number, (image, _) in enumerate(images)])
    classify(ListSource(source.items[:already]), folder / 'out.jsonl')
    delays = [delay for _, delay in images]
    engine = FakeEngine(concurrency, lambda question: delays[len(engine.questions) - 1])
    classify(source, folder / 'out.jsonl', engine)
    assert [row.id for row in read_rows(folder / 'out.jsonl')] == [item.id for item in source]
    assert len(engine.questions) == len({image for image, _ in images[already:]})


def test_an_unreadable_image_is_an_error_row_and_never_asked(tmp_path):
    folder = tmp_path / 'in'
    write_images(folder, 2)
    (folder / 'empty.jpg').write_bytes(b'')
    (folder / 'html.jpg').write_bytes(b'<!DOCTYPE html><title>404</title>')
    (folder / 'cut.jpg').write_bytes(jpeg(7, size=64)[:-200])
    engine, tally = classify(FolderSource(folder), tmp_path / 'out.jsonl')
    errors = {row.id: row.error for row in read_rows(tmp_path / 'out.jsonl') if row.error}
    assert sorted(errors) == ['cut.jpg', 'empty.jpg', 'html.jpg']
    assert 'no bytes at all' in errors['empty.jpg'] and 'no image' in errors['html.jpg']
    assert 'the JPEG file' in errors['cut.jpg']
    assert len(engine.questions) == 2
    assert (tally.rows, tally.errors) == (5, 3)
    assert all(row.label is None and row.probabilities is None and row.text is None
               for row in read_rows(tmp_path / 'out.jsonl') if row.error)


def test_a_server_that_never_answers_holds_up_no_other_image(tmp_path):
    """Also where one thread decodes: fetching is not its work."""
    write_images(tmp_path / 'in', 3)
    with serving({'/silent.jpg': lambda handler: handler.server.stopping.wait(20)}) as server:
        items = [Item(str(number), server.url('/silent.jpg')) for number in range(3)]
        items += list(FolderSource(tmp_path / 'in'))
        finished = {}
        limits = ImageLimits(url_seconds=1.0, private_addresses=True)
        classify(ListSource(items), tmp_path / 'out.jsonl', FakeEngine(concurrency=6),
                 RunSettings(prompt='?', limits=limits, decoders=1),
                 lambda completion: finished.update({completion.row.id: completion}))
    seconds = {name: done.finished - done.started for name, done in finished.items()}
    assert all(seconds.pop(str(number)) >= 1 for number in range(3))
    assert len(seconds) == 3 and all(each < 0.5 for each in seconds.values())


def test_an_answer_that_takes_too_long_is_an_error_row(tmp_path):
    write_images(tmp_path / 'in', 3)
    engine = FakeEngine(delay=lambda question: 30.0 if len(engine.questions) == 2 else 0.0)
    classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl', engine,
             RunSettings(prompt='?', timeout=0.05))
    errors = [row.error for row in read_rows(tmp_path / 'out.jsonl')]
    assert sorted(map(str, errors)) == ['None', 'None', 'no answer within 0.05 seconds']


@pytest.mark.parametrize('failure', [KeyError('boom'), asyncio.CancelledError()])
def test_whatever_the_engine_raises_for_one_image_ends_only_that_one(tmp_path, failure, caplog):

    def delay(question):
        if len(engine.questions) == 2:
            raise failure
        return 0.0

    write_images(tmp_path / 'in', 4)
    engine = FakeEngine(concurrency=1, delay=delay)
    with caplog.at_level(logging.WARNING, 'lmdeploy_ext'):
        classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl', engine)
    errors = [row.error for row in read_rows(tmp_path / 'out.jsonl')]
    expected = "KeyError: 'boom'" if isinstance(failure, KeyError) \
        else 'the engine dropped the request'
    assert errors == [None, expected, None, None]


def test_an_engine_that_is_gone_ends_the_run_and_keeps_the_rows(tmp_path):

    def delay(question):
        if len(engine.questions) > 10:
            raise EngineError('gone')
        return 0.0

    write_images(tmp_path / 'in', 20)
    engine = FakeEngine(concurrency=1, delay=delay)
    with pytest.raises(EngineError, match='gone'):
        classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl', engine)
    assert len(list(read_rows(tmp_path / 'out.jsonl'))) == 10
    classify(FolderSource(tmp_path / 'in'), tmp_path / 'out.jsonl')
    whole = tmp_path / 'whole.jsonl'
    classify(FolderSource(tmp_path / 'in'), whole)
    assert without_times(tmp_path / 'out.jsonl') == without_times(whole)


def test_ctrl_c_ends_the_run_and_keeps_the_rows(tmp_path):

    def interrupt(completion):
        if completion.row.id == '00004.jpg':
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    write_images(tmp_path / 'in', 40)
    engine = FakeEngine(concurrency=2, delay=lambda question: 0.01)
    with pytest.raises(KeyboardInterrupt):
        classify(FolderSource(tmp_path / 'in'),
                 tmp_path / 'out.jsonl',
                 engine,
                 on_completion=interrupt)
    assert 5 <= len(list(read_rows(tmp_path / 'out.jsonl'))) < 40
    assert engine.in_flight == 0


def test_completions_tell_when_each_image_was_admitted_and_answered(tmp_path):
    write_images(tmp_path / 'in', 4)
    completions = []
    engine = FakeEngine(concurrency=1, delay=lambda question: 0.02)
    classify(FolderSource(tmp_path / 'in'),
             tmp_path / 'out.jsonl',
             engine,
             on_completion=completions.append)
    for before, after in zip(completions, completions[1:]):
        assert before.started < before.finished <= after.started
    assert all(completion.row.seconds >= 0.02 for completion in completions)


def test_the_window_is_bounded_behind_a_slow_image(tmp_path):
    write_images(tmp_path / 'in', 60)
    engine = FakeEngine(2, lambda question: 0.3 if len(engine.questions) == 1 else 0.0)
    asked_when_first_was_written = []
    classify(FolderSource(tmp_path / 'in'),
             tmp_path / 'out.jsonl',
             engine,
             on_completion=lambda _: asked_when_first_was_written.append(len(engine.questions)))
    assert asked_when_first_was_written[0] <= 8
