"""An image that cannot be encoded fails its own request; the next ones are answered."""
import asyncio

import pytest
import torch
from lmdeploy.messages import VisionConfig
from lmdeploy.vl.engine import ImageEncoder

from lmdeploy_ext.vl.failure import FailedImage, ImageFailed, encode_each, raise_failure
from lmdeploy_ext.vl.image_errors import BadImageReference


class Model:
    """Encodes numbers; 13 is no image."""

    def __init__(self):
        self.batches = []

    def forward(self, images, params=None):
        self.batches.append(list(images))
        if 13 in images:
            raise TypeError('unhashable type: list')
        return [torch.full((2, 3), float(image)) for image in images]


@pytest.fixture
def encoder():
    """An ImageEncoder without a checkpoint, three images a batch."""
    encoder = object.__new__(ImageEncoder)
    encoder.model, encoder.vision_config = Model(), VisionConfig(max_batch_size=3)
    encoder.max_batch_size, encoder._que, encoder._loop_task = 3, None, None
    return encoder


def request(encoder, *images, seconds=5):
    """The answer to one request: the numbers of its images, or the error."""
    async def ask():
        features = await asyncio.wait_for(encoder.async_infer(list(images)), seconds)
        return [int(feature[0, 0]) for feature in features]

    return ask()


def test_stock_hangs_after_one_bad_image(encoder, monkeypatch):
    monkeypatch.setattr(ImageEncoder, 'forward', ImageEncoder.forward.__wrapped__)

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for images in ([13], [1]):
            with pytest.raises(asyncio.TimeoutError):
                await request(encoder, *images, seconds=0.3)

    asyncio.run(run())


def test_requests_of_the_same_batch_and_later_ones_are_answered(encoder):
    async def run():
        first = [request(encoder, 1), request(encoder, 2, 13), request(encoder, 3, 4)]
        first = await asyncio.gather(*first, return_exceptions=True)
        return first, await request(encoder, 5)

    (one, bad, two), later = asyncio.run(run())
    assert (one, two, later) == ([1], [3, 4], [5])
    assert isinstance(bad, ImageFailed)
    assert str(bad) == 'the image cannot be encoded: TypeError: unhashable type: list'
    assert isinstance(bad.__cause__, TypeError)


def test_a_good_batch_is_encoded_at_once():
    model = Model()
    assert len(encode_each(model.forward, [1, 2, 3], [{}] * 3)) == 3
    assert model.batches == [[1, 2, 3]]


def test_parameters_stay_with_their_image():
    def encode(images, params):
        if len(images) > 1:
            raise ValueError
        return [(images[0], params[0])]

    assert encode_each(encode, ['a', 'b'], [1, 2]) == [('a', 1), ('b', 2)]


@pytest.mark.parametrize('use', [lambda x: x.cpu(), lambda x: x['grid_thw'], lambda x: x.shape])
def test_a_failed_image_raises_its_reason_wherever_it_is_used(use):
    with pytest.raises(ImageFailed, match='OSError: truncated'):
        use(FailedImage(OSError('truncated')))


def test_what_says_itself_what_the_image_is_stays_as_it_is():
    with pytest.raises(BadImageReference, match='^no such file$'):
        FailedImage(BadImageReference('no such file')).fail()


def test_an_interrupt_is_no_failure_of_an_image():
    def encode(images, params):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_each(encode, [1])


def test_features_pass():
    assert raise_failure([1, 2]) == [1, 2]
