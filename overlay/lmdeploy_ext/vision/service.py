"""Images to features for one model: what LMDeploy's `ImageEncoder` is replaced by.

See docs/vision.md for the way of an image. Any number of event loops and threads may use it.
"""
import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Mapping, Optional, Sequence

import torch

from lmdeploy_ext.vision.content_key import feature_key
from lmdeploy_ext.vision.feature_cache import FeatureCache
from lmdeploy_ext.vision.features import DeviceBudget, Features
from lmdeploy_ext.vision.figures import FigureLog, VisionFigures, graph_figures
from lmdeploy_ext.vision.shared_work import SharedWork
from lmdeploy_ext.vision.tile_queue import Flow
from lmdeploy_ext.vision.tile_scheduler import TileScheduler
from lmdeploy_ext.vl.failure import ImageFailed
from lmdeploy_ext.vl.image_errors import UnreadableImage
from lmdeploy_ext.vl.image_loader import ImageLoader, OpenedImage


class VisionService:
    """Reads, cuts and encodes the images of requests.

    Args:
        loader: prepares images.
        scheduler: encodes their tiles.
        cache: features of known images; None to look nothing up.
        model: identity of the vision model, for keys.
        budget: of features on the GPU that wait for the language model; None where they are in
            host memory already.
        log_seconds: between two lines of figures in the log, while there is work.
        keyed: whether features carry their keys, also where no cache needs them.
    """

    def __init__(self, loader: ImageLoader, scheduler: TileScheduler,
                 cache: Optional[FeatureCache], model: bytes,
                 budget: Optional[DeviceBudget] = None, log_seconds: float = 60,
                 keyed: bool = False) -> None:
        self._loader, self._scheduler, self._cache = loader, scheduler, cache
        self._model, self._budget, self._keyed = model, budget, keyed
        self._shared = SharedWork()
        self._log = FigureLog(self.figures, log_seconds)

    async def load(self, references: Sequence[Any],
                   options: Sequence[Mapping[str, Any]]) -> List[Any]:
        """The references themselves: `async_infer` reads them. For whoever takes an
        `ImageLoader`."""
        return list(references)

    async def async_infer(self, inputs: Sequence[Any],
                          params: Optional[Sequence[Mapping[str, Any]]] = None) -> List[Features]:
        """The features of a request's images, in order; cancelling it takes back what has not run.

        Args:
            inputs: whatever `vl.image_source.read` takes.
            params: for each image `max_dynamic_patch` and `detail`, each optional.

        Raises:
            UnreadableImage: one of them cannot be used.
            ImageFailed: the vision model fails for one of them.
        """
        options = [{}] * len(inputs) if params is None else params
        flow, cache = self._scheduler.flow(), self._cache
        opened = await self._loader.open(inputs, options, keyed=self._keyed or cache is not None)
        tasks = [asyncio.ensure_future(self._features(image, flow, cache)) for image in opened]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            # each ends by giving its place back, before the request does
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            for image in opened:
                image.release()
            self._log.written_if_due()

    def infer(self, inputs: Sequence[Any],
              params: Optional[Sequence[Mapping[str, Any]]] = None) -> List[Features]:
        """Like `async_infer`, for a caller that waits; its thread may have an event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.async_infer(inputs, params)).result()

    def figures(self) -> VisionFigures:
        """The numbers of all parts."""
        return VisionFigures(scheduler=self._scheduler.figures(),
                             cache=None if self._cache is None else self._cache.figures(),
                             shared=self._shared.figures(),
                             graphs=graph_figures(self._scheduler.backend),
                             waiting_feature_bytes=self._budget.bytes if self._budget else 0)

    def drop_cache(self) -> None:
        """Keep no features from now on: for a run over many images that sees each one once."""
        self._cache = None

    def close(self) -> None:
        """End the scheduler; requests that wait fail."""
        self._scheduler.close()
        self._shared.close()

    async def _features(self, image: OpenedImage, flow: Flow,
                        cache: Optional[FeatureCache]) -> Features:
        key = None
        if image.key is not None:
            key = feature_key(image.key, image.plan, self._loader.settings.rules, self._model)
        if cache is None:
            return await self._hand_out(await self._encode(image, flow), key)

        async def encode_and_keep() -> torch.Tensor:
            features = await self._encode(image, flow)
            cache.put(key, features)
            return features

        found = cache.get(key)
        if found is None:
            found = await self._shared.result(key, encode_and_keep)
        image.release()  # its place, where another request's computation or the cache gave them
        return await self._hand_out(found, key)

    async def _hand_out(self, features: torch.Tensor, key: Optional[bytes]) -> Features:
        if self._budget is None:
            return Features(features, key)
        handed = self._budget.hand_out(features, key)
        if handed is None:  # the copy waits for the GPU, so another thread does
            loop = asyncio.get_running_loop()
            handed = Features(await loop.run_in_executor(None, features.cpu), key)
        return handed

    async def _encode(self, image: OpenedImage, flow: Flow) -> torch.Tensor:
        prepared = await self._loader.cut(image)
        try:
            return await self._scheduler.encode(prepared.tiles, flow, prepared.release)
        except (UnreadableImage, asyncio.CancelledError):
            raise
        except Exception as error:  # whatever the model raises: the request gets the reason
            reason = f'{type(error).__name__}: {error}'
            raise ImageFailed(f'the image cannot be encoded: {reason}') from error
