"""Killed as often as one likes, at any moment, the file ends up as if nothing had happened."""
import random
import signal
import subprocess
import sys

from .fakes import jpeg, wait_for, without_times, write_images


def start(folder, output):
    command = [sys.executable, '-m', 'tests.classify.run_with_fake', folder, output, '0.01', '3']
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)


def test_killed_again_and_again_and_resumed_it_is_the_same_file(tmp_path):
    folder = tmp_path / 'in'
    paths = write_images(folder, 120)
    for number in range(0, 120, 7):
        paths[number].write_bytes(jpeg(number // 30))  # copies, of images before and behind
    paths[50].write_bytes(b'no image')
    assert start(folder, tmp_path / 'whole.jsonl').wait(60) == 0
    output = tmp_path / 'rows.jsonl'
    kills = 0
    for rows in (1, 17, 40, 41, 90):
        process = start(folder, output)
        wait_for(lambda: process.poll() is not None or
                 (output.exists() and output.read_bytes().count(b'\n') > rows))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        # the kill may fall into a write, which no test can time
        with open(output, 'ab') as file:
            file.write(b'{"id": "half-written'[:random.Random(rows).randrange(20)])
    assert kills == 5
    assert start(folder, output).wait(60) == 0
    assert without_times(output) == without_times(tmp_path / 'whole.jsonl')
