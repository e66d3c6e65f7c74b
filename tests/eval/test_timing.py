"""QPM in steady state and latency."""
import pytest

from lmdeploy_ext.eval.timing import Completion, latency, throughput


def steady(count, seconds_apart=.5, concurrency=4, session=(1, 0), start=0., load=0.):
    """`count` answers at an even rate, each in flight for `concurrency` intervals; the first ones
    wait for a load."""
    finished = [start + load + seconds_apart * (number + 1) for number in range(count)]
    return [
        Completion(f'{session}-{number}', session, max(start, end - concurrency * seconds_apart),
                   end) for number, end in enumerate(finished)
    ]


def test_an_even_rate_is_found_exactly():
    result = throughput(steady(100), concurrency=4, warmup=8)
    assert result.qpm == pytest.approx(120)
    assert (result.low, result.high) == (pytest.approx(120), pytest.approx(120))
    # 100 answers without the last 4; the eighth starts the clock; windows of 16
    assert result.images == 80
    assert result.seconds == pytest.approx(40)
    assert len(result.windows) == 5


def test_warm_up_and_run_down_are_left_out():
    slow_first = [Completion(f'warm-{i}', (1, 0), 0, 10. * (i + 1)) for i in range(8)]
    middle = steady(80, start=80.)
    end = middle[-1].finished
    slow_last = [Completion(f'last-{i}', (1, 0), end, end + 10 * (i + 1)) for i in range(4)]
    result = throughput(slow_first + middle + slow_last, concurrency=4, warmup=8)
    assert result.qpm == pytest.approx(120)
    assert result.high == pytest.approx(120)


def test_the_median_shrugs_off_a_disturbance():
    answers = steady(50) + steady(50, start=85.)
    result = throughput(answers, concurrency=4, warmup=4)
    assert result.qpm == pytest.approx(120)
    assert result.low < 60


def test_sessions_are_not_mixed():
    # the pause between two sessions of a resumed run, and the other clock of the second, must not
    # show
    result = throughput(steady(60) + steady(60, session=(1, 1), load=30.), concurrency=4, warmup=8)
    assert result.qpm == pytest.approx(120)
    assert result.low == pytest.approx(120)


def test_copied_and_failed_answers_do_not_count_as_work():
    copied = [Completion(f'copy-{i}', (1, 0), 20., 20., computed=False) for i in range(1000)]
    assert throughput(steady(100) + copied, concurrency=4, warmup=8).qpm == pytest.approx(120)
    assert latency(steady(100) + copied, concurrency=4, warmup=8).images == 92


def test_windows_are_wider_than_a_burst():
    # 16 answers at a time, every 2 s: 480 a minute, though within a burst there is no time at all
    bursts = [Completion(str(i), (1, 0), 0, 2. * (i // 16 + 1) + 1e-6 * i) for i in range(320)]
    result = throughput(bursts, concurrency=16, warmup=16)
    assert result.qpm == pytest.approx(480, rel=.01)
    assert result.low > 440


def test_too_few_answers_say_how_many_are_needed():
    result = throughput(steady(12), concurrency=4, warmup=8)
    assert result.qpm is None
    assert 'at least 13' in result.reason
    assert throughput(steady(13), concurrency=4, warmup=8).qpm == pytest.approx(120)
    assert throughput([], concurrency=4, warmup=8).qpm is None


def test_latency_percentiles():
    answers = [Completion(str(i), (1, 0), float(i), i + (i - 4.) / 100) for i in range(5, 105)]
    result = latency(answers, concurrency=4, warmup=0)
    assert (result.p50, result.p95, result.p99) == pytest.approx((.505, .9505, .9901))
    assert (result.concurrency, result.images) == (4, 100)
    assert latency([], concurrency=4, warmup=0).p50 is None
