"""What an engine's parts say of their work, as differences between two times."""
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence

from ..errors import EvalError


@dataclass(frozen=True)
class Figures:
    """Counters since the engine's start.

    Attributes:
        images: whose features the engine was given.
        images_on_gpu: those of them whose features were on a GPU then.
        virtual: requests with images that TurboMind got as virtual tokens; None in the other
            engine, 0 where TurboMind has none.
        prompt_tokens, cached_tokens: of the PyTorch engine with a prefix cache; else None.
    """
    images: int
    images_on_gpu: int
    virtual: Optional[int]
    prompt_tokens: Optional[int]
    cached_tokens: Optional[int]


class FigureTaker:
    """Counts features between vision service and engine, and asks the engine for its figures.

    Args:
        pipe: what `lmdeploy.pipeline` gave, not yet in use.

    Raises:
        EvalError: images go to upstream's encoder.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.service = pipe.vl_encoder.service
        if self.service is None:
            raise EvalError('the vision service is off, or the model is no InternVL model; unset '
                            'LMDEPLOY_EXT_VISION, or choose another --model')
        self._images = self._on_gpu = 0
        pipe.vl_encoder.async_infer = self._counted

    def keeps_features(self) -> bool:
        """Whether there is a feature cache."""
        return self.service.figures().cache is not None

    def now(self) -> Figures:
        """The counters."""
        engine, virtual, prompt, cached = self._pipe.engine, None, None, None
        if self._pipe.backend == 'turbomind':
            tokens = engine.virtual_tokens
            virtual = 0 if tokens is None else tokens.figures().virtual
        elif engine.scheduler.block_trie.enable:
            from lmdeploy_ext.pytorch.prefix.cache import prefix_cache_of
            figures = prefix_cache_of(engine.scheduler.block_trie).figures()
            prompt, cached = figures.prompt_tokens, figures.cached_tokens
        return Figures(self._images, self._on_gpu, virtual, prompt, cached)

    def since(self, before: Figures) -> Dict[str, Optional[int]]:
        """What was counted since then, by name."""
        then, now = vars(before), vars(self.now())
        return {name: None if now[name] is None else now[name] - then[name] for name in now}

    async def _counted(self, inputs: Sequence[Any], params: Any = None) -> List[Any]:
        features = await self.service.async_infer(inputs, params)
        self._images += len(features)
        self._on_gpu += sum(each.numpy().is_cuda for each in features)
        return features
