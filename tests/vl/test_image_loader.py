"""The loader: every kind of reference, bounded, off the event loop, and nothing is ever lost."""
import asyncio
import gc
import io
import random
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from lmdeploy_ext.vision.content_key import content_key
from lmdeploy_ext.vl import image_loader
from lmdeploy_ext.vl.image_decode import PixelRules
from lmdeploy_ext.vl.image_errors import BadImageReference, DamagedImage, UnreadableImage
from lmdeploy_ext.vl.image_limits import ImageLimits
from lmdeploy_ext.vl.image_loader import ImageLoader
from lmdeploy_ext.vl.image_settings import ImageSettings
from lmdeploy_ext.vl.image_workers import ImageWorkers
from lmdeploy_ext.vl.tile_policy import TileModel, TilePolicy
from tests.vl.image_files import cut, data_url, encoded, picture

SIDE = 32
MODEL = TileModel(side=SIDE, tokens=4, max_tiles=6)
PNG = encoded(picture(60, 30), 'PNG')
CUT = cut(PNG)


@pytest.fixture
def make():
    """Makes loaders: `make(places=…, policy=…, max_tiles=…)`."""
    made = []

    def loader(places=4, policy='native', max_tiles=None, **limits):
        workers = ImageWorkers(threads=2, in_flight=places)
        made.append(workers)
        settings = ImageSettings(ImageLimits(**limits), PixelRules(), TilePolicy.parse(policy),
                                 max_tiles)
        return ImageLoader(MODEL, settings, workers)

    yield loader
    for workers in made:
        workers.close()


def load(loader, *references, seconds=10, **options):
    """Prepared images of one request, on an event loop of its own."""
    request = loader.load(references, [options] * len(references))
    return asyncio.run(asyncio.wait_for(request, seconds))


async def open_and_cut(loader, references, options):
    """What `load` does, in its two stages; as is asked of callers, each image is cut or released,
    also where a cut is cancelled before it begins."""
    opened = await loader.open(references, options, keyed=True)
    cuts = [asyncio.ensure_future(loader.cut(image)) for image in opened]
    try:
        return await asyncio.gather(*cuts)
    except BaseException:
        for task in cuts:
            task.cancel()
        for done in await asyncio.gather(*cuts, return_exceptions=True):
            if not isinstance(done, BaseException):
                done.release()
        raise
    finally:
        for image in opened:
            image.release()


def in_stages(loader, *references, seconds=10, **options):
    request = open_and_cut(loader, references, [options] * len(references))
    return asyncio.run(asyncio.wait_for(request, seconds))


def open_images(loader, *references, keyed=False, seconds=10):
    """Opened images of one request, on an event loop of its own."""
    request = loader.open(references, [{}] * len(references), keyed)
    return asyncio.run(asyncio.wait_for(request, seconds))


def all_places_are_free(loader):
    places = asyncio.run(asyncio.wait_for(loader._workers.admission.enter(10**6), 10))
    for place in places:
        place.free()
    return True


@pytest.fixture
def web():
    """Address of a server that sends PNG, except for /silent, which it never answers."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):

        def do_GET(self):
            if self.path == '/silent':
                over.wait(20)
                return
            self.send_response(200)
            self.send_header('Content-Length', str(len(PNG)))
            self.end_headers()
            self.wfile.write(PNG)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01, ))
    thread.start()
    yield f'http://127.0.0.1:{server.server_address[1]}'
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_kind_of_reference_gives_the_same_tiles(make, web, tmp_path):
    file = tmp_path / 'a.png'
    file.write_bytes(PNG)
    image = Image.open(io.BytesIO(PNG))
    references = [PNG, str(file), file, file.as_uri(), data_url(PNG, 'image/png'), image,
                  np.asarray(image), bytearray(PNG), f'{web}/a.png']
    loader = make(places=20, private_addresses=True)
    first, *others = load(loader, *references)
    assert first.tiles.shape == (2, SIDE, SIDE, 3) and first.tiles.dtype == np.uint8
    assert all(np.array_equal(first.tiles, other.tiles) for other in others)
    prepared = loader.prepare([image, PNG], [{}, {}])
    assert all(np.array_equal(first.tiles, other.tiles) for other in prepared)


def test_a_request_may_ask_for_fewer_tiles_and_the_operator_too(make):
    large = picture(200, 200)

    def tiles(loader, **options):
        return len(load(loader, large, **options)[0].tiles)

    assert tiles(make()) == 5 and tiles(make(), max_dynamic_patch=3) == 1
    assert tiles(make(), detail='high') == 5, 'only ever fewer'
    capped = make(max_tiles=2)
    assert tiles(capped) == 1 and tiles(capped, detail='high') == 1


def test_the_operators_cap_holds_for_stock_tiles_and_never_raises_their_number(make):
    large = picture(96, 64)
    assert len(load(make(policy='stock'), large)[0].tiles) == 7
    assert len(load(make(policy='stock', max_tiles=2), large, detail='high')[0].tiles) <= 3
    assert len(load(make(policy='stock', max_tiles=50), large)[0].tiles) == 7


def test_stock_tiles_without_a_cap_rise_as_upstreams_do(make):
    """Upstream's `detail` and `max_dynamic_patch` may ask for more than the model's own number."""
    large = picture(300, 200)
    loader = make(policy='stock')
    assert len(load(loader, large, detail='high')[0].tiles) == 24 + 1
    assert len(load(loader, large, max_dynamic_patch=10**9)[0].tiles) == 24 + 1
    assert len(load(loader, large, max_dynamic_patch=0)[0].tiles) == 1


def test_images_of_a_request_share_a_budget(make):
    images = [picture(200, 200), picture(90, 60), picture(20, 20)]
    sizes = [len(image.tiles) for image in load(make(policy=f'budget:{8 * MODEL.tokens}'),
                                                *images)]
    assert sizes == [5, 2, 1]


def test_one_bad_image_fails_its_request_and_no_other(make):
    loader = make(places=4)

    async def run():
        requests = [loader.load([PNG, CUT, PNG], [{}] * 3), loader.load([PNG], [{}])]
        bad, good = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(bad, DamagedImage) and len(good[0].tiles) == 2

    asyncio.run(run())
    assert all_places_are_free(loader)


@pytest.mark.parametrize('reference', [None, 7, '', 'nowhere.png', 'data:image/png;base64',
                                       'data:image/png;base64,@@@', b'', 'ftp://x/y.png'])
def test_what_is_no_image_is_named(make, reference):
    with pytest.raises(UnreadableImage) as caught:
        load(make(), reference)
    assert '\n' not in str(caught.value)


def test_a_detail_that_is_a_list_is_the_requests_error(make):
    with pytest.raises(BadImageReference):
        load(make(), PNG, detail=['high'])


@pytest.mark.parametrize('get', [load, open_images])
def test_an_image_holds_its_place_until_it_is_released_or_dropped(make, get):
    """Prepared, or opened only."""
    loader = make(places=2)
    first, second = get(loader, PNG, PNG)
    with pytest.raises(asyncio.TimeoutError):
        load(loader, PNG, seconds=0.05)
    first.release()
    first.release()
    third, = get(loader, PNG)
    del second, third
    assert all_places_are_free(loader)


def test_the_memory_of_a_released_image_is_used_again(make):
    loader = make()
    image, = load(loader, PNG)
    address = image.tiles.ctypes.data
    image.release()
    assert load(loader, PNG)[0].tiles.ctypes.data == address


def test_a_request_of_more_images_than_places_is_served(make):
    loader = make(places=2)
    images = load(loader, *[PNG] * 9)
    assert len(images) == 9
    for image in images:
        image.release()
    assert all_places_are_free(loader)


def test_a_server_that_never_answers_takes_no_place_from_others(make, web):
    loader = make(places=1, private_addresses=True, url_seconds=2.5)

    async def run():
        silent = asyncio.create_task(loader.load([f'{web}/silent'], [{}]))
        await asyncio.sleep(0.05)
        image, = await asyncio.wait_for(loader.load([PNG], [{}]), 5)
        assert not silent.done()
        image.release()
        with pytest.raises(UnreadableImage, match='2.5 s'):
            await silent

    asyncio.run(run())


def test_servers_that_never_answer_keep_nobody_from_fetching(make, web):
    loader = make(places=1, private_addresses=True, url_seconds=4.0)

    async def run():
        silent = [asyncio.create_task(loader.load([f'{web}/silent'], [{}])) for _ in range(40)]
        await asyncio.sleep(0.05)
        image, = await asyncio.wait_for(loader.load([f'{web}/a.png'], [{}]), 5)
        assert not any(task.done() for task in silent)
        image.release()
        told = await asyncio.gather(*silent, return_exceptions=True)
        assert all(isinstance(each, UnreadableImage) for each in told)

    asyncio.run(run())


def test_nothing_of_it_runs_on_the_event_loop(make, monkeypatch):
    threads = set()

    def watched(function):
        def call(*args, **kwargs):
            threads.add(threading.current_thread().name.partition('_')[0])
            return function(*args, **kwargs)

        return call

    for name in ('read', 'read_header', 'plan_request', 'content_key', 'decode', 'cut'):
        monkeypatch.setattr(image_loader, name, watched(getattr(image_loader, name)))
    for policy in ('native', 'budget:16'):
        load(make(policy=policy), PNG, PNG)
        in_stages(make(policy=policy), PNG, PNG)
    assert threads == {'image'}


@pytest.mark.parametrize('stages', [False, True], ids=['load', 'open and cut'])
def test_many_requests_with_failures_and_cancellations_lose_nothing(make, stages):
    """Three event loops at once on one loader: whatever is not cancelled ends rightly."""
    loader = make(places=5)
    wrong, other = [], picture(40, 40)

    async def client(chance):
        async def request():
            references = chance.choices([PNG, CUT, other], (6, 1, 3), k=chance.randint(1, 7))
            try:
                prepare = partial(open_and_cut, loader) if stages else loader.load
                images = await prepare(references, [{}] * len(references))
            except DamagedImage:
                if not any(reference is CUT for reference in references):
                    wrong.append('a good request failed')
                return
            if len(images) != len(references):
                wrong.append('an image is missing')
            try:
                await asyncio.sleep(chance.random() * 0.002)
            finally:
                del images[:chance.randint(0, 1)]  # some are dropped, not released
                for image in images:
                    image.release()

        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(request()))
            if chance.random() < 0.3:
                await asyncio.sleep(0.001)
                chance.choice(tasks).cancel()
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        wrong.extend(repr(each) for each in done if isinstance(each, Exception))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(client(random.Random(n))))
               for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads) and wrong == []
    gc.collect()
    assert all_places_are_free(loader)


class Held:
    """A function that says when it is called and returns when it is let go; on any thread."""

    def __init__(self, function):
        self._function = function
        self.called, self.free = threading.Event(), threading.Event()

    def __call__(self, *args, **kwargs):
        self.called.set()
        assert self.free.wait(20)
        return self._function(*args, **kwargs)


async def happens(event):
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 20)


@pytest.mark.parametrize('policy', ['native', 'stock', f'budget:{8 * MODEL.tokens}'])
def test_two_stages_give_the_tiles_of_one(make, policy):
    references = [PNG, picture(200, 200), encoded(picture(90, 60), 'JPEG', orientation=6), PNG]
    loader = make(places=20, policy=policy)
    expected = load(loader, *references, max_dynamic_patch=5)
    for one, other in zip(expected, in_stages(loader, *references, max_dynamic_patch=5)):
        assert np.array_equal(one.tiles, other.tiles)


def test_an_opened_image_tells_its_header_and_tiles_and_is_not_decoded(make, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError('an image is decoded')

    for name in ('decode', 'cut'):
        monkeypatch.setattr(image_loader, name, never)
    pixels = picture(20, 40)
    file, array = open_images(make(), PNG, pixels)
    assert file.content == PNG and (file.header.width, file.header.height) == (60, 30)
    assert (file.plan.columns, file.plan.rows, file.plan.tiles) == (2, 1, 2)
    assert np.array_equal(array.content, pixels) and array.header is None
    assert (array.plan.columns, array.plan.rows) == (1, 2)
    assert file.key is None and array.key is None, 'hashed only for those who ask'


def test_images_that_share_a_budget_are_opened_together(make):
    images = [picture(200, 200), picture(90, 60), picture(20, 20)]
    opened = open_images(make(policy=f'budget:{8 * MODEL.tokens}'), *images)
    assert [image.plan.tiles for image in opened] == [5, 2, 1]


def test_an_image_has_one_key_whatever_refers_to_it(make, web, tmp_path):
    path = tmp_path / 'a.png'
    path.write_bytes(PNG)
    loader = make(places=20, private_addresses=True)
    files = open_images(loader, PNG, bytearray(PNG), str(path), path, path.as_uri(),
                        data_url(PNG, 'image/png'), f'{web}/a.png', keyed=True)
    image = Image.open(io.BytesIO(PNG))
    pixels = open_images(loader, image, np.asarray(image), keyed=True)
    other, = open_images(loader, CUT, keyed=True)
    assert len({image.key for image in files}) == len({image.key for image in pixels}) == 1
    assert len({files[0].key, pixels[0].key, other.key}) == 3


@pytest.mark.parametrize('policy', ['native', 'budget:64'])
def test_a_key_is_that_of_the_pixels_that_are_cut(make, policy):
    """A caller may use its array again once its request has been read."""
    array = picture(60, 30)
    expected = load(make(), array)[0].tiles

    async def run():
        loader = make(policy=policy)
        first, second = await loader.open([array, array], [{}] * 2, keyed=True)
        array[:] = 0
        for image in (first, second):
            assert image.key == content_key(picture(60, 30))
            assert np.array_equal((await loader.cut(image)).tiles, expected)

    asyncio.run(run())


def test_the_place_goes_from_the_opened_image_to_its_tiles(make):
    loader = make(places=1)
    opened, = open_images(loader, PNG)
    prepared = asyncio.run(loader.cut(opened))
    opened.release()
    with pytest.raises(asyncio.TimeoutError):
        load(loader, PNG, seconds=0.05)
    prepared.release()
    assert all_places_are_free(loader)


def test_an_image_that_was_released_can_still_be_cut_for_another(make):
    """One whose request was cancelled just when another had joined in its computation."""
    loader = make(places=1)
    opened, = open_images(loader, PNG)
    opened.release()
    assert len(asyncio.run(loader.cut(opened)).tiles) == 2
    assert all_places_are_free(loader)


def test_more_images_than_places_are_opened(make):
    loader = make(places=2)
    images = open_images(loader, *[PNG] * 9)
    assert len(images) == 9
    for image in images:
        asyncio.run(loader.cut(image)).release()
    assert all_places_are_free(loader)


@pytest.mark.parametrize('policy', ['native', 'budget:64'])
def test_what_is_no_image_fails_when_it_is_opened_and_frees_all_places(make, policy):
    loader = make(policy=policy)
    with pytest.raises(UnreadableImage):
        open_images(loader, PNG, b'no image', PNG, keyed=True)
    assert all_places_are_free(loader)


def test_damage_behind_the_header_is_found_when_it_is_cut_and_frees_the_place(make):
    loader = make()
    opened, = open_images(loader, CUT)
    with pytest.raises(DamagedImage):
        asyncio.run(loader.cut(opened))
    assert all_places_are_free(loader)


@pytest.mark.parametrize('policy', ['native', 'budget:64'])
def test_opening_that_is_cancelled_frees_all_places_at_once(make, monkeypatch, policy):
    """Also while a worker is busy with it."""
    loader, held = make(places=3, policy=policy), Held(image_loader.read_header)

    async def run():
        monkeypatch.setattr(image_loader, 'read_header', held)
        task = asyncio.create_task(loader.open([PNG] * 3, [{}] * 3, keyed=True))
        await happens(held.called)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert len(await asyncio.wait_for(loader._workers.admission.enter(3), 10)) == 3
        held.free.set()

    asyncio.run(run())
    assert all_places_are_free(loader)


def test_opening_that_is_cancelled_in_the_queue_lets_those_behind_it_in(make):
    loader = make(places=2)

    async def run():
        image, = await loader.open([PNG], [{}])
        large = asyncio.create_task(loader.open([PNG] * 2, [{}] * 2))
        small = asyncio.create_task(loader.open([PNG], [{}]))
        await asyncio.sleep(0)
        large.cancel()
        assert len(await asyncio.wait_for(small, 10)) == 1
        image.release()

    asyncio.run(run())
    assert all_places_are_free(loader)


def test_cutting_that_is_cancelled_frees_the_place_at_once(make, monkeypatch):
    loader, held = make(places=1), Held(image_loader.decode)
    monkeypatch.setattr(image_loader, 'decode', held)

    async def run():
        opened, = await loader.open([PNG], [{}])
        task = asyncio.create_task(loader.cut(opened))
        await happens(held.called)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await asyncio.wait_for(loader.open([PNG], [{}]), 10)) == 1
        held.free.set()

    asyncio.run(run())
    assert all_places_are_free(loader)
