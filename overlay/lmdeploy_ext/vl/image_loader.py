"""From the images of a request to tiles, on the worker threads."""
import asyncio
from dataclasses import replace
from functools import partial
from typing import (Any, Awaitable, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple,
                    TypeVar, Union)

import numpy as np

from lmdeploy_ext.config import Settings
from lmdeploy_ext.vision.content_key import content_key
from lmdeploy_ext.vl.admission import Place
from lmdeploy_ext.vl.image_decode import decode
from lmdeploy_ext.vl.image_header import read_header
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_source import is_remote, read
from lmdeploy_ext.vl.image_workers import ImageWorkers, shared_workers
from lmdeploy_ext.vl.opened import ImageContent, OpenedImage
from lmdeploy_ext.vl.prepared import PreparedImage
from lmdeploy_ext.vl.tile_buffers import TileBuffers
from lmdeploy_ext.vl.tile_policy import TileModel
from lmdeploy_ext.vl.tiles import cut, needed
from lmdeploy_ext.vl.tiling import TilePlan, plan_request, requested_tiles

# Tile buffers that wait for their next image: a hundred images of one or two tiles.
_IDLE_BUFFER_BYTES = 128 << 20

T = TypeVar('T')
Work = Callable[[Sequence[Any], Sequence[Optional[int]], Sequence[Optional[Place]]],
                Awaitable[List[T]]]


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

    @property
    def side(self) -> int:
        """Of a tile, in pixels."""
        return self._model.side

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
        return await self._in_turn(self._prepare_all, references, options)

    async def open(self, references: Sequence[Any], options: Sequence[Mapping[str, Any]],
                   keyed: bool = False) -> List[OpenedImage]:
        """The first half of `load`: read the images of one request, and decide their tiles.

        For whoever may know their features already: each is then cut (`cut`), or released.

        Args:
            references, options: as for `load`.
            keyed: whether to compute the keys of their contents.

        Raises:
            UnreadableImage: one of them cannot be used, as far as its header tells; none holds a
                place then.
        """
        open_all = partial(self._open_all, keyed=keyed)
        return await self._in_turn(open_all, references, options)

    async def cut(self, opened: OpenedImage) -> PreparedImage:
        """The second half of `load`, for one image: decode it, and cut it into its tiles.

        The place goes over to what is returned. It is free again at once if this fails or is
        cancelled.

        Raises:
            UnreadableImage: its pixels cannot be read.
        """
        place = opened.take_place()
        try:
            prepared, = await _gather(self._workers.pool, self._cut,
                                      [(opened.source, opened.plan, place)])
            return prepared
        except BaseException:
            if place is not None:
                place.free()
            raise

    def prepare(self, images: Sequence[Any],
                options: Sequence[Mapping[str, Any]]) -> List[PreparedImage]:
        """Like `load` where a thread waits, at once and without a turn of its own.

        For images that are already in the vision model's hands.
        """
        pool, limits = self._workers.pool, [self._limit(option) for option in options]
        contents = list(pool.map(self._open, images))
        plans = self._plan(contents, limits)
        return list(pool.map(self._cut, contents, plans))

    async def _in_turn(self, work: 'Work[T]', references: Sequence[Any],
                       options: Sequence[Mapping[str, Any]]) -> List[T]:
        """Work on the images of a request, which gets places for it and keeps those of what is
        returned.

        Args:
            work: given what `read` takes, the most tiles and the place of each.
        """
        limits = [self._limit(option) for option in options]
        sources = await self._fetch_remote(references)
        places = await self._workers.admission.enter(len(sources))
        try:
            # a request of more images than there are places has places for the first of them
            holders = [*places, *[None] * (len(sources) - len(places))]
            return await work(sources, limits, holders)
        except BaseException:
            for place in places:
                place.free()
            raise

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
        if self._planned_together(sources):
            opened = await self._open_all(sources, limits, places)
            return await _gather(self._workers.pool, self._cut,
                                 [(image.source, image.plan, image.take_place())
                                  for image in opened])
        return await _gather(self._workers.pool, self._prepare_one, zip(sources, limits, places))

    async def _open_all(self, sources: Sequence[Any], limits: Sequence[Optional[int]],
                        places: Sequence[Optional[Place]],
                        keyed: bool = False) -> List[OpenedImage]:
        pool = self._workers.pool
        if not self._planned_together(sources):
            return await _gather(pool, self._open_one, [
                (*each, keyed) for each in zip(sources, limits, places)])
        contents = await _gather(pool, self._open, [(source, keyed) for source in sources])
        plans, = await _gather(pool, self._plan, [(contents, limits)])
        return [OpenedImage(*each) for each in zip(contents, plans, places)]

    def _planned_together(self, sources: Sequence[Any]) -> bool:
        """Whether the sizes of all images have to be known before one is planned."""
        return self.settings.policy.kind == 'budget' and len(sources) > 1

    def _prepare_one(self, source: Any, limit: Optional[int],
                     place: Optional[Place]) -> PreparedImage:
        content = self._open(source)
        plan, = self._plan([content], [limit])
        return self._cut(content, plan, place)

    def _open_one(self, source: Any, limit: Optional[int], place: Optional[Place],
                  keyed: bool) -> OpenedImage:
        content = self._open(source, keyed)
        plan, = self._plan([content], [limit])
        return OpenedImage(content, plan, place)

    def _limit(self, options: Mapping[str, Any]) -> Optional[int]:
        requested = requested_tiles(options)
        if requested is None or self._cap is None:
            return requested
        return min(requested, self._cap)

    def _read(self, reference: Any) -> Union[bytes, np.ndarray]:
        return read(reference, self.settings.limits, self.settings.rules)

    def _open(self, source: Any, keyed: bool = False) -> ImageContent:
        content = self._read(source)
        header = None
        if not isinstance(content, np.ndarray):
            header = read_header(content, self.settings.limits, self.settings.rules)
        elif keyed:
            # the caller's own array, perhaps: written to between key and cut, it would have its
            # features known under the key of what it was
            content = content.copy()
        return ImageContent(content, header, content_key(content) if keyed else None)

    def _plan(self, contents: Sequence[ImageContent],
              limits: Sequence[Optional[int]]) -> List[TilePlan]:
        return plan_request([image.size for image in contents], self.settings.policy, self._model,
                            limits)

    def _cut(self, source: ImageContent, plan: TilePlan,
             place: Optional[Place] = None) -> PreparedImage:
        pixels, rules = source.content, self.settings.rules
        if source.header is not None:
            pixels = decode(pixels, source.header, rules, at_least=needed(plan))
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
