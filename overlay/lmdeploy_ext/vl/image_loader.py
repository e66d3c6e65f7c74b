"""From the images of a request to tiles, on the worker threads."""
import asyncio
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vl.admission import Place
from lmdeploy_ext.vl.image_decode import decode
from lmdeploy_ext.vl.image_header import ImageHeader, read_header
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_source import is_remote, read
from lmdeploy_ext.vl.image_workers import ImageWorkers, shared_workers
from lmdeploy_ext.vl.prepared import PreparedImage
from lmdeploy_ext.vl.tile_buffers import TileBuffers
from lmdeploy_ext.vl.tile_policy import TileModel
from lmdeploy_ext.vl.tiles import cut, needed
from lmdeploy_ext.vl.tiling import TilePlan, plan_request, requested_tiles

# Tile buffers that wait for their next image: a hundred images of one or two tiles.
_IDLE_BUFFER_BYTES = 128 << 20


@dataclass(frozen=True)
class _Opened:
    """An image whose size is known.

    Attributes:
        content: encoded, or uint8 RGB [h, w, 3].
        header: None where the content is pixels.
    """
    content: Union[bytes, np.ndarray]
    header: Optional[ImageHeader]

    @property
    def size(self) -> Tuple[int, int]:
        """Width and height in pixels."""
        if self.header is None:
            return self.content.shape[1], self.content.shape[0]
        return self.header.width, self.header.height


class ImageLoader:
    """Prepares images for one vision model; any thread and any event loop may use it.

    Args:
        model: what the vision model wants of its tiles.
        settings: how images are read and cut.
        workers: threads and places, shared with other loaders.
        pinned: whether tiles lie in page-locked memory, from which a GPU copies without waiting.
    """

    def __init__(self, model: TileModel, settings: ImageSettings, workers: ImageWorkers,
                 pinned: bool = False) -> None:
        self.settings = settings
        self._cap = settings.max_tiles
        if self._cap is not None:
            model = replace(model, max_tiles=min(model.max_tiles, self._cap),
                            min_tiles=min(model.min_tiles, self._cap))
        self._model = model
        self._workers = workers
        self._buffers = TileBuffers(model.side, pinned, _IDLE_BUFFER_BYTES)

    @classmethod
    def from_settings(cls, config: Any, settings: Settings, pinned: bool) -> 'ImageLoader':
        """A loader on this process's shared workers.

        Args:
            config: of an `InternVLChatModel`.
        """
        workers = shared_workers(settings.image_workers, settings.images_in_flight)
        return cls(TileModel.from_config(config), ImageSettings.of(settings), workers, pinned)

    async def load(self, references: Sequence[Any],
                   options: Sequence[Mapping[str, Any]]) -> List[PreparedImage]:
        """Read and cut the images of one request.

        Waits for the request's turn. Cancelling it gives up its turn and what is not begun.

        Args:
            references: whatever `image_source.read` takes.
            options: for each image, `max_dynamic_patch` and `detail`, each optional.

        Raises:
            UnreadableImage: one of them cannot be used; none is prepared then.
        """
        limits = [self._limit(option) for option in options]
        sources = await self._fetch_remote(references)
        places = await self._workers.admission.enter(len(sources))
        try:
            # a request of more images than there are places has places for the first of them
            holders = [*places, *[None] * (len(sources) - len(places))]
            return await self._prepare_all(sources, limits, holders)
        except BaseException:
            for place in places:
                place.free()
            raise

    def prepare(self, images: Sequence[Any],
                options: Sequence[Mapping[str, Any]]) -> List[PreparedImage]:
        """Like `load` where a thread waits, at once and without a turn of its own.

        For images that are already in the vision model's hands.
        """
        pool, limits = self._workers.pool, [self._limit(option) for option in options]
        opened = list(pool.map(self._open, images))
        plans = self._plan(opened, limits)
        return list(pool.map(self._cut, opened, plans))

    async def _fetch_remote(self, references: Sequence[Any]) -> List[Any]:
        """The references, remote ones replaced by what their servers sent."""
        remote = [index for index, reference in enumerate(references)
                  if is_remote(reference)]
        sources = list(references)
        fetched = await _gather(self._workers.fetchers, self._read,
                                [(references[index], ) for index in remote])
        for index, data in zip(remote, fetched):
            sources[index] = data
        return sources

    async def _prepare_all(self, sources: Sequence[Any], limits: Sequence[Optional[int]],
                           places: Sequence[Optional[Place]]) -> List[PreparedImage]:
        pool = self._workers.pool
        if self.settings.policy.kind != 'budget' or len(sources) == 1:
            return await _gather(pool, self._prepare_one, zip(sources, limits, places))
        # images that share a budget are planned together, once all sizes are known
        opened = await _gather(pool, self._open, [(source, ) for source in sources])
        plans, = await _gather(pool, self._plan, [(opened, limits)])
        return await _gather(pool, self._cut, zip(opened, plans, places))

    def _prepare_one(self, source: Any, limit: Optional[int],
                     place: Optional[Place]) -> PreparedImage:
        opened = self._open(source)
        plan, = self._plan([opened], [limit])
        return self._cut(opened, plan, place)

    def _limit(self, options: Mapping[str, Any]) -> Optional[int]:
        requested = requested_tiles(options)
        if requested is None or self._cap is None:
            return requested
        return min(requested, self._cap)

    def _read(self, reference: Any) -> Union[bytes, np.ndarray]:
        return read(reference, self.settings.limits, self.settings.rules)

    def _open(self, source: Any) -> _Opened:
        content = self._read(source)
        if isinstance(content, np.ndarray):
            return _Opened(content, None)
        return _Opened(content, read_header(content, self.settings.limits, self.settings.rules))

    def _plan(self, opened: Sequence[_Opened], limits: Sequence[Optional[int]]) -> List[TilePlan]:
        return plan_request([image.size for image in opened], self.settings.policy, self._model,
                            limits)

    def _cut(self, opened: _Opened, plan: TilePlan,
             place: Optional[Place] = None) -> PreparedImage:
        pixels, rules = opened.content, self.settings.rules
        if opened.header is not None:
            pixels = decode(pixels, opened.header, rules, at_least=needed(plan))
        buffer = self._buffers.take(plan.tiles)
        cut(pixels, plan, self._model.side, upstream=rules.upstream, out=buffer)
        return PreparedImage(buffer, self._buffers, place)


async def _gather(pool: Any, function: Callable, arguments: Iterable[Tuple]) -> List[Any]:
    """`function` of each of `arguments` on a pool; if one fails, those not begun are dropped."""
    loop = asyncio.get_running_loop()
    futures = [loop.run_in_executor(pool, function, *each) for each in arguments]
    try:
        return await asyncio.gather(*futures)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
