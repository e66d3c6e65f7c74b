"""The process of one engine: `python -m lmdeploy_ext.eval.bench.prefix_engine DESCRIPTOR`.

`prefix_process.EngineProcess` starts it, with everything patched. DESCRIPTOR is its end of a pipe:
`EngineSettings` come through it, then commands; an answer goes back for each (see `Answer`).
"""
import logging
import sys
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Coroutine, Dict, List

import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
from lmdeploy_ext.classify.engine import LoopThread
from lmdeploy_ext.classify.errors import one_line
from lmdeploy_ext.patching import settings_in_force

from .prefix_client import Client
from .prefix_figures import FigureTaker
from .prefix_process import Answer, EngineSettings, Measure
from .prefix_scenarios import RUN

_BLOCK = 64  # tokens of a KV block, in both engines
_SESSION = 8192  # tokens: twice those of the largest request


def main(descriptor: str) -> int:
    """Serve until nobody asks any more. Exit code: 0."""
    pipe = Connection(int(descriptor))
    warnings = _Warnings()
    logging.getLogger('lmdeploy_ext').addHandler(warnings)
    loop = LoopThread('lmdeploy')
    engine = _Engine(pipe.recv())
    # the PyTorch engine's device context belongs to the thread that it is made in
    pipe.send(_answer(loop, engine.start(), warnings))
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return 0
        pipe.send(_answer(loop, engine.obey(command), warnings))


def _answer(loop: LoopThread, work: 'Coroutine[Any, Any, Dict[str, Any]]',
            warnings: '_Warnings') -> Answer:
    try:
        value, error = loop.run(work), None
    except Exception as failure:  # whatever an engine raises belongs into the result
        traceback.print_exc()
        value, error = None, one_line(failure)
    return Answer(value, error, warnings.taken())


class _Engine:
    """LMDeploy, and who asks it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._pipe: Any = None
        self._client: Client
        self._figures: FigureTaker

    async def start(self) -> Dict[str, Any]:
        """Load the model and run each scenario, shortened, with images that do not come again."""
        import lmdeploy
        settings = self._settings
        self._pipe = lmdeploy.pipeline(settings.model, backend_config=backend_config(settings),
                                       log_level='WARNING')
        self._client = Client(self._pipe)
        self._figures = FigureTaker(self._pipe)
        scope = settings.scope
        few = replace(scope, large_images=1, images=scope.concurrency)
        for measure in RUN.values():
            await measure(self._client, few, scope.rounds + 1)
        in_force = {name: value for name, value in settings_in_force().items()
                    if value is not None}
        return {'backend': self._pipe.backend, 'instances': self._pipe.instance_num,
                'feature_cache': self._figures.keeps_features(), 'settings': in_force}

    async def obey(self, command: Measure) -> Dict[str, Any]:
        """Measure a scenario; returns what it gives, and the figures of that time."""
        if not command.keep_features:
            self._figures.service.drop_cache()
        before = self._figures.now()
        measured = await RUN[command.scenario](self._client, self._settings.scope,
                                               command.number)
        return {**measured, 'figures': self._figures.since(before)}


def backend_config(settings: EngineSettings) -> Any:
    """LMDeploy's engine configuration. The size of the KV cache is given in blocks: two engines
    share a GPU, and of what is free the second would get less."""
    import lmdeploy
    common = {'session_len': _SESSION, 'enable_prefix_caching': settings.caching}
    blocks = settings.scope.kv_tokens // _BLOCK
    if settings.backend == 'turbomind':
        config = lmdeploy.TurbomindEngineConfig(cache_block_seq_len=_BLOCK, **common)
        # a number of blocks from 1 on (BlockManager.cc), which the constructor refuses
        config.cache_max_entry_count = blocks
        return config
    return lmdeploy.PytorchEngineConfig(device_type=settings.device, num_gpu_blocks=blocks,
                                        block_size=_BLOCK, **common)


class _Warnings(logging.Handler):
    """What this project warns of: why an engine works without what is to be measured."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())

    def taken(self) -> List[str]:
        """Those since the last call."""
        messages, self._messages = self._messages, []
        return messages


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
