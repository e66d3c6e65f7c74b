"""LMDeploy in this process: `lmdeploy.pipeline`, driven one request at a time."""
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Deque, Dict, List, Mapping, Optional, Union

from lmdeploy_ext import patching
from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.image_errors import UnreadableImage
from lmdeploy_ext.vl.image_settings import ImageSettings

from .decode import Needs
from .engine import Answer, LoopThread, Question
from .errors import EngineError, one_line
from .generation import NO_LOGPROBS, check_finished, sampling
from .prefix_caching import check_prefix_caching
from .tokenizer import chat_template_config

BACKENDS = ('auto', 'pytorch', 'turbomind')
DEVICES = ('auto', 'cpu', 'cuda')
_TILES_PATCH = 'internvl_forward_tiles'


@dataclass(frozen=True)
class PipelineSettings:
    """How to start LMDeploy in this process.

    Attributes:
        model: the model's folder.
        backend: `auto` as LMDeploy chooses, `pytorch` or `turbomind`.
        device: `auto` for a GPU where there is one, `cuda`, or `cpu` (PyTorch engine only).
        tp: GPUs that the language model is split over.
        session_len: tokens of prompt, image and answer at most; None for the model's own limit.
        vision_batch: images that stock's vision encoder is given at once; ours packs tiles
            (`LMDEPLOY_EXT_VISION_BATCH_TILES`).
        chat_template: name or JSON file; None as LMDeploy chooses by the model.
        concurrency: images in flight.
        prefix_caching: whether the language model keeps the KV blocks of prompts for those that
            begin the same.
    """
    model: str
    backend: str = 'auto'
    device: str = 'auto'
    tp: int = 1
    session_len: Optional[int] = None
    vision_batch: int = 1
    chat_template: Optional[str] = None
    concurrency: int = 32
    prefix_caching: bool = False


class PipelineEngine:
    """An `Engine` over `lmdeploy.pipeline`; see `Engine` for the methods' contracts."""

    def __init__(self, settings: PipelineSettings) -> None:
        if settings.device == 'cpu' and settings.backend == 'turbomind':
            raise EngineError('TurboMind runs on GPUs only; choose --backend pytorch or auto for '
                              '--device cpu')
        self._settings = settings
        self.concurrency = settings.concurrency
        self.loop: LoopThread
        self._pipe: Any = None
        # LMDeploy keeps an entry for each session id that it has ever seen: ids are used again
        self._free_sessions: Deque[int] = deque()
        self._sessions = 0

    def __enter__(self) -> 'PipelineEngine':
        self.loop = LoopThread('lmdeploy')
        try:
            self.loop.run(self._start())
        except BaseException:
            self.loop.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.loop.close()
        self._pipe = None

    async def _start(self) -> None:
        # on the loop's thread: the PyTorch engine's device context is thread-local
        self._pipe = _build_pipeline(self._settings)
        service = getattr(self._pipe.vl_encoder, 'service', None)
        if service is not None and Settings.from_env().feature_cache_mb is None:
            service.drop_cache()  # a run sees each image once, and `AnswerCache` knows the others
        # requests beyond the engine's instances would look for a free one ten times a second
        self.concurrency = min(self.concurrency, self._pipe.instance_num)

    @property
    def needs(self) -> Needs:
        """Bytes where LMDeploy has lmdeploy-ext's image loader, else what stock LMDeploy reads."""
        loader = getattr(self._pipe.vl_prompt_template, 'image_loader', None)
        return Needs.PIXELS if loader is None else Needs.BYTES

    async def answer(self, question: Question) -> Answer:
        if self._free_sessions:
            session = self._free_sessions.popleft()
        else:
            self._sessions += 1
            session = self._sessions
        generation = _generation_config(question, after_top_k=self._pipe.backend == 'turbomind')
        collected = _Collected()
        stream = self._pipe.generate(_messages(question), session, gen_config=generation)
        try:
            async with aclosing(stream):
                async for output in stream:
                    collected.add(output)
        except UnreadableImage:
            # the engine has not begun with that session
            self._free_sessions.append(session)
            raise
        # not after a failure: LMDeploy may still be stopping that session
        self._free_sessions.append(session)
        return collected.answer()

    def settings(self) -> Dict[str, Any]:
        kept = ('backend', 'device', 'session_len', 'chat_template')
        in_force = patching.settings_in_force()
        return {
            'engine': 'pipeline',
            'tiles': _tiles_in_force(),
            'patches': in_force['patches'] if in_force['armed'] else 'none',
            **{
                name: getattr(self._settings, name)
                for name in kept
            }
        }

    def details(self) -> Dict[str, Any]:
        config = self._pipe.backend_config
        return {
            'backend': self._pipe.backend,
            'device': getattr(config, 'device_type', 'cuda'),
            'tp': config.tp,
            'vision_batch': self._settings.vision_batch,
            'prefix_caching': config.enable_prefix_caching,
            'concurrency': self.concurrency
        }


class _Collected:
    """An answer as it comes, piece by piece."""

    def __init__(self) -> None:
        self._texts: List[str] = []
        self._logprobs: Optional[Mapping[int, float]] = None
        self._last: Any = None

    def add(self, output: Any) -> None:
        """Add one of LMDeploy's `GenOut`."""
        self._last = output
        self._texts.append(output.response)
        if output.logprobs and self._logprobs is None:
            self._logprobs = output.logprobs[0]

    def answer(self) -> Answer:
        last = self._last
        check_finished(last.finish_reason, last.generate_token_len)
        if not self._logprobs:
            raise EngineError(NO_LOGPROBS)
        return Answer(''.join(self._texts), self._logprobs, last.input_token_len,
                      last.generate_token_len, getattr(last, 'cached_tokens', None))


def _tiles_in_force() -> Union[str, Dict[str, Any]]:
    """What decides an image's tiles in this process: settings, or upstream alone."""
    states = {row['name']: row['state'] for row in patching.status()}
    if states[_TILES_PATCH] not in ('ready', 'applied'):
        return 'upstream'
    return ImageSettings.of(Settings.from_env()).what_decides_tiles()


def _build_pipeline(settings: PipelineSettings) -> Any:
    """LMDeploy's `VLAsyncEngine` of the model.

    Raises:
        EngineError: it does not start, the model has no vision part, or there is no GPU where one
            was asked for.
    """
    import lmdeploy
    from lmdeploy.archs import get_task

    from lmdeploy_ext.pytorch.device import runs_on_cpu
    if settings.device == 'cuda' and runs_on_cpu('cuda'):
        raise EngineError('no GPU found for --device cuda; choose --device auto or cpu')
    if settings.prefix_caching:
        check_prefix_caching(settings.model, settings.backend, settings.device)
    template = settings.chat_template
    try:
        if get_task(settings.model)[0] != 'vlm':
            raise EngineError(f'{settings.model} is not a vision-language model that LMDeploy '
                              f'{lmdeploy.__version__} knows; choose one, for example InternVL2')
        return lmdeploy.pipeline(
            settings.model,
            backend_config=_backend_config(settings),
            chat_template_config=None if template is None else chat_template_config(template),
            log_level='WARNING',
            vision_config=lmdeploy.VisionConfig(max_batch_size=settings.vision_batch))
    except (AssertionError, ImportError, OSError, RuntimeError, ValueError) as error:
        raise EngineError(f'LMDeploy cannot start {settings.model}: {one_line(error)}') from error


def _backend_config(settings: PipelineSettings) -> Any:
    """LMDeploy's engine configuration. With `auto` TurboMind's, which LMDeploy turns into the
    PyTorch engine's where TurboMind does not know the model."""
    import lmdeploy
    common = {'tp': settings.tp, 'session_len': settings.session_len,
              'enable_prefix_caching': settings.prefix_caching}
    if settings.backend == 'pytorch' or settings.device == 'cpu':
        device = 'cuda' if settings.device == 'auto' else settings.device
        return lmdeploy.PytorchEngineConfig(device_type=device, **common)
    return lmdeploy.TurbomindEngineConfig(**common)


def _generation_config(question: Question, after_top_k: bool) -> Any:
    import lmdeploy
    settings = sampling(question.top_logprobs, after_top_k)
    # do_sample with top_k=1 is greedy too; without it LMDeploy 0.6.4 warns of each request
    return lmdeploy.GenerationConfig(do_sample=True,
                                     random_seed=settings.pop('seed'),
                                     max_new_tokens=question.max_new_tokens,
                                     logprobs=question.top_logprobs,
                                     **settings)


def _messages(question: Question) -> List[Dict[str, Any]]:
    picture = question.picture
    data = picture.data if picture.rgb is None else picture.rgb
    image = {'data': data, **question.options}
    content = [{
        'type': 'text',
        'text': question.prompt
    }, {
        'type': 'image_data',
        'image_data': image
    }]
    system = [] if question.system is None else [{'role': 'system', 'content': question.system}]
    return [*system, {'role': 'user', 'content': content}]
