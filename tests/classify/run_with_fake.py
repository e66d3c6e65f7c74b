"""A process that classifies a folder with a fake engine: to be killed, or measured.

    python -m tests.classify.run_with_fake FOLDER OUTPUT [SECONDS_AN_ANSWER] [CONCURRENCY]

It prints its peak memory in MiB.
"""
import resource
import sys
from pathlib import Path

from lmdeploy_ext.classify.files import FolderSource
from lmdeploy_ext.classify.result_file import ResultFile
from lmdeploy_ext.classify.runner import RunSettings, run
from lmdeploy_ext.classify.source import check_source

from .fakes import IDENTITY, YES_NO, FakeEngine


def main(folder: str, output: str, delay: str = '0', concurrency: str = '4') -> None:
    source = FolderSource(Path(folder))
    check_source(source)
    with ResultFile(Path(output), IDENTITY) as result, \
            FakeEngine(int(concurrency), lambda question: float(delay)) as engine:
        engine.questions = _Forgetful()
        result.begin(IDENTITY)
        run(source, engine, YES_NO, result, RunSettings(prompt='?'))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


class _Forgetful:
    """A list that keeps nothing: the questions' images would be what takes the memory."""

    def append(self, question: object) -> None:
        pass


if __name__ == '__main__':
    main(*sys.argv[1:])
