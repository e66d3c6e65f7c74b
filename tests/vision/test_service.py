"""The vision service: each request its own features, known images once, failures alone."""
import asyncio
import functools
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from lmdeploy import PytorchEngineConfig
from lmdeploy.vl.engine import ImageEncoder
from lmdeploy.vl.model.builder import load_vl_model

from lmdeploy_ext.models import register
from lmdeploy_ext.models.checkpoint import write_checkpoint
from lmdeploy_ext.vision.backend import VisionBackend
from lmdeploy_ext.vision.build import build_service
from lmdeploy_ext.vision.features import DeviceBudget, Features, attached_key
from lmdeploy_ext.vl.failure import ImageFailed
from lmdeploy_ext.vl.image_errors import UnreadableImage
from lmdeploy_ext.vl.internvl import encode
from tests.vl.image_files import encoded, picture

register()
CPU = PytorchEngineConfig(device_type='cpu')


@pytest.fixture(scope='module')
def reference(checkpoint):
    """What an image's features are: the reference model, one image at a time."""
    vision = load_vl_model(checkpoint, backend_config=CPU)
    return lambda image: encode(vision, [image])[0]


@pytest.fixture
def serve(checkpoint, monkeypatch):
    """Makes a service under some settings."""
    made = []

    def build(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f'LMDEPLOY_EXT_{name}', value)
        made.append(build_service(load_vl_model(checkpoint, backend_config=CPU), CPU))
        return made[-1]

    yield build
    for service in made:
        service.close()


def images(count):
    """Encoded pictures of one to five tiles of the tiny model."""
    return [encoded(picture(60 + 23 * number % 300, 50 + 41 * number % 250), 'PNG')
            for number in range(count)]


def tensors(features):
    return [one.cpu().numpy() for one in features]


def close_to(found, expected):
    """Float32 in another order of sums."""
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize('settings', [
    {}, {'FEATURE_CACHE_MB': '0'}, {'VISION': 'upstream'}, {'VISION_BATCH_TILES': '1'}])
def test_each_request_gets_the_features_of_its_images_in_order(serve, reference, settings):
    service, pictures = serve(**settings), images(12)

    async def ask():
        requests = [pictures[:5], pictures[5:6], pictures[6:], pictures[2:4]]
        return requests, await asyncio.gather(*map(service.async_infer, requests))

    requests, answers = asyncio.run(ask())
    for request, answer in zip(requests, answers):
        assert len(answer) == len(request)
        for image, found in zip(request, answer):
            expected = reference(image)
            assert found.shape == expected.shape
            close_to(found.cpu().numpy(), expected)


def test_a_known_image_is_neither_decoded_nor_encoded_again(serve):
    service, (image, other) = serve(), images(2)
    first, = tensors(service.infer([image]))
    again, new = tensors(service.infer([bytes(image), other]))
    assert torch.equal(first, again) and not torch.equal(first, new[:len(first)])
    figures = service.figures()
    assert (figures.cache.hits, figures.cache.misses) == (1, 2)
    assert figures.scheduler.images == 2


@pytest.mark.parametrize('settings', [{}, {'FEATURE_CACHE_MB': '0'}], ids=str)
def test_features_carry_the_key_of_their_image_for_the_prefix_cache(checkpoint, monkeypatch,
                                                                    settings):
    for name, value in settings.items():
        monkeypatch.setenv(f'LMDEPLOY_EXT_{name}', value)
    config = PytorchEngineConfig(device_type='cpu', enable_prefix_caching=True)
    service = build_service(load_vl_model(checkpoint, backend_config=CPU), config)
    image, other = images(2)
    ask = [image, other, bytes(image)]
    keys = [attached_key(one) for one in tensors(service.infer(ask))]
    assert keys[0] == keys[2] != keys[1] and None not in keys
    capped, = tensors(service.infer([encoded(picture(300, 250), 'PNG')], [{}]))
    one, = tensors(service.infer([encoded(picture(300, 250), 'PNG')], [{'max_dynamic_patch': 1}]))
    assert attached_key(capped) != attached_key(one)
    service.close()


def test_without_a_feature_cache_and_a_prefix_cache_nothing_is_hashed(serve):
    features, = tensors(serve(FEATURE_CACHE_MB='0').infer(images(1)))
    assert attached_key(features) is None


def test_without_a_cache_nothing_is_kept(serve):
    service, (image, ) = serve(), images(1)
    service.drop_cache()
    first, again = tensors(service.infer([image, image]))
    assert torch.equal(first, again) and first.data_ptr() != again.data_ptr()
    assert service.figures().cache is None and service.figures().scheduler.images == 2


def test_an_image_that_many_ask_for_at_once_is_computed_once(serve):
    service, (image, ) = serve(), images(1)

    async def ask():
        return await asyncio.gather(*(service.async_infer([image, image]) for _ in range(20)))

    answers = asyncio.run(ask())
    assert len({tensor.data_ptr() for pair in answers for tensor in tensors(pair)}) == 1
    assert service.figures().scheduler.images == 1


def test_other_options_of_the_same_image_are_other_features(serve):
    service, image = serve(), encoded(picture(300, 250), 'PNG')
    many, one = tensors(service.infer([image, image], [{}, {'max_dynamic_patch': 1}]))
    assert len(one) < len(many)
    assert service.figures().cache.hits == 0


@pytest.mark.parametrize('name, value', [
    ('TILES', 'stock'), ('MAX_SHRINK', '2'), ('TILE_FIT', 'pad'), ('PIXELS', 'upstream'),
    ('THUMBNAIL_FROM', '20'), ('MAX_TILES', '1'), ('TILES', 'budget:64')])
def test_features_of_one_setting_are_never_served_under_another(serve, name, value):
    """The cache of one service is given to another: the keys keep them apart."""
    plain, image = serve(), encoded(picture(230, 180), 'PNG')
    expected, = tensors(plain.infer([image]))
    other = serve(**{name: value})
    fresh, = tensors(other.infer([image]))
    other._cache = plain._cache
    found, = tensors(other.infer([image]))
    close_to(found, fresh)
    assert found.shape != expected.shape or not torch.equal(found, expected)


def test_features_of_one_model_are_never_served_for_another(serve, tmp_path, monkeypatch):
    write_checkpoint(tmp_path / 'other', 'tiny', dtype='float32', seed=8)
    other = build_service(load_vl_model(str(tmp_path / 'other'), backend_config=CPU), CPU)
    plain, image = serve(), images(1)[0]
    plain.infer([image])
    fresh, = tensors(other.infer([image]))
    other._cache = plain._cache
    assert torch.allclose(tensors(other.infer([image]))[0], fresh, atol=2e-5)
    other.close()


def test_an_unreadable_image_fails_its_request_alone(serve, reference):
    service, (good, ) = serve(IMAGES_IN_FLIGHT='2'), images(1)

    async def ask():
        requests = [[good, b'<html>'], [good], [b'', good], [good]]
        return await asyncio.gather(*map(service.async_infer, requests), return_exceptions=True)

    for _ in range(5):  # more often than there are places
        bad, fine, empty, last = asyncio.run(ask())
        assert isinstance(bad, UnreadableImage) and isinstance(empty, UnreadableImage)
        for answer in (fine, last):
            close_to(tensors(answer)[0], reference(good))


class Failing(VisionBackend):
    """Fails for batches with a black tile, as a model may for one image."""

    def __init__(self, backend):
        self.__dict__.update({name: getattr(backend, name) for name in (
            'device', 'dtype', 'side', 'tokens', 'hidden', 'max_tiles')})
        self._backend = backend

    def encode(self, tiles, out):
        if (tiles.flatten(1).amax(1) == 0).any():
            raise RuntimeError('black')
        self._backend.encode(tiles, out)


def test_an_image_that_the_model_fails_for_fails_its_request_alone(serve, reference):
    service, good = serve(FEATURE_CACHE_MB='0'), images(1)[0]
    service._scheduler._backend = Failing(service._scheduler._backend)
    black = np.zeros((112, 112, 3), np.uint8)

    async def ask():
        return await asyncio.gather(service.async_infer([good, black]),
                                    service.async_infer([good]), return_exceptions=True)

    bad, fine = asyncio.run(ask())
    assert isinstance(bad, ImageFailed) and 'RuntimeError: black' in str(bad)
    close_to(tensors(fine)[0], reference(good))


def test_cancelled_requests_leave_their_places_and_others_their_image(serve):
    service, pictures = serve(IMAGES_IN_FLIGHT='2'), images(6)

    async def ask():
        tasks = [asyncio.ensure_future(service.async_infer(pictures[number % 6:][:2]))
                 for number in range(30)]
        for step in range(15):
            await asyncio.sleep(0)
            tasks[2 * step].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(ask())
    for number, answer in enumerate(answers):
        if number % 2:
            assert [one.shape for one in answer] == [
                tuple(one.shape) for one in tensors(service.infer(pictures[number % 6:][:2]))]
        else:
            assert isinstance(answer, (asyncio.CancelledError, list))


def test_any_thread_and_event_loop_may_ask(serve, reference):
    service, pictures = serve(), images(4)
    expected, found = [reference(image) for image in pictures], {}

    def ask(number):
        for _ in range(3):
            found[number] = tensors(service.infer([pictures[number % 4]]))[0]

    threads = [threading.Thread(target=ask, args=(number, )) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(16):
        close_to(found[number], expected[number % 4])


def test_upstreams_encoder_uses_it_without_a_polling_thread(checkpoint):
    from lmdeploy.messages import VisionConfig
    encoder = ImageEncoder(checkpoint, VisionConfig(thread_safe=True), CPU)
    assert not hasattr(encoder, '_loop_thread') and encoder.vision_config.thread_safe
    features, = asyncio.run(encoder.async_infer(images(1)))
    assert torch.equal(tensors([features])[0], tensors(encoder.infer(images(1)))[0])
    scheduler = weakref.ref(encoder.service._scheduler)
    del encoder, features
    gc.collect()
    assert scheduler() is None  # and with it the model's memory


def test_an_interpreter_that_ends_waits_for_no_batch_that_never_does(checkpoint):
    program = f"""
import asyncio, threading
import lmdeploy_ext.autopatch
from lmdeploy_ext.vision import tile_scheduler
from tests.vision.test_service import CPU, ImageEncoder, images
tile_scheduler.EXIT_SECONDS = 0.1
encoder = ImageEncoder({checkpoint!r}, None, CPU)
encoder.service._scheduler._backend.encode = lambda tiles, out: threading.Event().wait()
try:
    asyncio.run(asyncio.wait_for(encoder.async_infer(images(1)), 1))
except asyncio.TimeoutError:
    print('the end')
"""
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True,
                           timeout=90)
    assert ended.returncode == 0 and ended.stdout.endswith('the end\n'), ended.stderr


def test_a_tower_of_another_side_is_refused_at_the_start(checkpoint):
    vision = load_vl_model(checkpoint, backend_config=CPU)
    vision.model.config.force_image_size = 56
    with pytest.raises(ValueError, match='56 pixels.*cut to 112.*LMDEPLOY_EXT_VISION=upstream'):
        build_service(vision, CPU)


def test_the_engine_finds_the_towers_memory_free(checkpoint, monkeypatch):
    vision = load_vl_model(checkpoint, backend_config=CPU)
    tower = vision.model.vision_model
    tower.forward = functools.partial(tower.forward)  # a cycle, as accelerate's hooks make them
    weight, held = weakref.ref(tower.encoder.layers[0].attn.proj.weight), []
    del tower
    monkeypatch.setattr(torch.cuda, 'empty_cache', lambda: held.append(weight()))
    service = build_service(vision, CPU)
    service.close()
    assert held[-1:] == [None]


def test_it_is_off_by_setting(checkpoint, monkeypatch):
    monkeypatch.setenv('LMDEPLOY_EXT_VISION', 'off')
    encoder = ImageEncoder(checkpoint, None, CPU)
    assert encoder.service is None and 'async_infer' not in vars(encoder)


def test_features_that_wait_on_the_gpu_are_counted_while_somebody_holds_them():
    budget, tensor = DeviceBudget(1000), torch.zeros(10, 10)
    first, second = budget.hand_out(tensor), budget.hand_out(tensor)
    assert budget.bytes == 800 and isinstance(first, Features)
    assert budget.hand_out(tensor) is None and budget.bytes == 800
    held = first.cpu().numpy()
    del first
    assert budget.bytes == 800 and held.data_ptr() == tensor.data_ptr()
    del held, second
    assert budget.bytes == 0
