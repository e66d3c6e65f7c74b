"""In place of `lmdeploy_ext.eval.bench.prefix_engine` in tests: measures nothing.

What it does wrong stands in variables, each of the form `CACHE SCENARIO` (`on instruction`, or
`on start`): FAKE_RAISES answers with an error, FAKE_DIES prints a traceback and ends, FAKE_HANGS
never answers.
"""
import os
import sys
import threading
from multiprocessing.connection import Connection

from lmdeploy_ext.eval.bench.prefix_process import Answer
from lmdeploy_ext.eval.bench.prefix_scope import QUESTIONS


def figures(settings, requests):
    """Those of TurboMind, all as wanted, or of the PyTorch engine."""
    if settings.backend == 'turbomind':
        return dict(images=requests, images_on_gpu=requests, virtual=requests, prompt_tokens=None,
                    cached_tokens=None)
    tokens = 1000 * requests if settings.caching else None
    return dict(images=requests, images_on_gpu=0, virtual=None, prompt_tokens=tokens,
                cached_tokens=tokens and tokens // 4)


def measured(settings, command):
    """The cache makes later questions five times, and images with an instruction two times, as
    fast. In the second round the machine is half as fast."""
    slow = 1 + (command.number == 1)
    if command.scenario == QUESTIONS:
        later = .02 if settings.caching and command.keep_features else .08
        return dict(first_token_s=[[slow * .1] + [slow * later] * 7], requests=8,
                    input_tokens=1000., figures=figures(settings, 8))
    seconds = {'off instruction': 20, 'on instruction': 10}.get(
        f'{"on" if settings.caching else "off"} {command.scenario}', 10)
    return dict(seconds=slow * seconds, requests=100, input_tokens=500.,
                figures=figures(settings, 100))


def misbehave(settings, what):
    """Returns an error, or nothing, or does not return."""
    named = f'{"on" if settings.caching else "off"} {what}'
    if os.environ.get('FAKE_DIES') == named:
        print('Traceback …\nsome_engine.errors.OutOfMemory: no room\n', flush=True)
        os._exit(7)
    if os.environ.get('FAKE_HANGS') == named:
        threading.Event().wait()
    return 'RuntimeError: it cannot' if os.environ.get('FAKE_RAISES') == named else None


def main(descriptor):
    """Serve until nobody asks any more."""
    pipe = Connection(int(descriptor))
    settings = pipe.recv()
    error = misbehave(settings, 'start')
    pipe.send(Answer({'backend': settings.backend, 'pid': os.getpid()}, error,
                     ['no virtual tokens'] if settings.caching else []))
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        error = misbehave(settings, command.scenario)
        pipe.send(Answer(None if error else measured(settings, command), error, []))


if __name__ == '__main__':
    main(*sys.argv[1:])
