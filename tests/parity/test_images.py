"""Images: `pipeline` on the CPU answers as a plain float32 reference does, pixel by pixel."""
import re

import pytest
import torch
from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline
from lmdeploy.vl.constants import IMAGE_TOKEN
from lmdeploy.vl.model.builder import load_vl_model

from tests.parity.engine import greedy
from tests.parity.pixels import picture, pixel_values
from tests.parity.reference import Reference

TOKENS = 8
SIZES = [(112, 112), (300, 200), (64, 48), (120, 400), (640, 360)]
IMAGES = [picture(seed, *size) for seed, size in enumerate(SIZES)]
QUESTIONS = [
    ('Describe the image.', IMAGES[:1]),
    ('描述这张图片。', IMAGES[1:2]),
    ('Which is larger?', IMAGES[:2]),
    ('Three images', IMAGES[2:]),
    ('Are there three or more beds?', IMAGES[4:]),
    ('No image at all', []),
    ('Hello', []),
    (f'Before {IMAGE_TOKEN} after', IMAGES[3:4]),
]


def expected_ids(pipe, reference: Reference, question: str, images: list, tokens: int) -> list:
    """What the reference answers to the very prompt that the pipeline makes of a question."""
    template = pipe.vl_prompt_template
    messages = template.prompt_to_messages((question, images) if images else question)
    text = template.messages2prompt(messages, True)
    context = pipe.tokenizer.encode('<IMG_CONTEXT>', add_bos=False)
    parts, ids = re.split(re.escape(IMAGE_TOKEN), text), []
    for index, part in enumerate(parts):
        if index:
            tiles = len(pixel_values([images[index - 1]], reference.model.config))
            ids += context * tiles * reference.model.num_image_token
        ids += pipe.tokenizer.encode(part, add_bos=index == 0)
    reference.model.img_context_token_id, = context
    pixels = pixel_values(images, reference.model.config) if images else None
    return reference.ids(ids, tokens, pixels)


def answers(pipe) -> list:
    prompts = [(question, images) if images else question for question, images in QUESTIONS]
    return [answer.token_ids for answer in pipe(prompts, gen_config=greedy(TOKENS))]


@pytest.fixture(scope='module')
def expected(checkpoint):
    """Answers of the reference by shape; the first pipeline of a shape gives the prompts."""
    known = {}

    def ids(shape, pipe):
        if shape not in known:
            reference = Reference(checkpoint(shape))
            known[shape] = [expected_ids(pipe, reference, *q, TOKENS) for q in QUESTIONS]
        return known[shape]

    return ids


@pytest.mark.parametrize('shape', ['tiny', 'tiny-internlm2', 'tiny-llama'])
def test_one_image_several_and_none_in_a_batch(checkpoint, expected, loop, shape):
    pipe = pipeline(checkpoint(shape), PytorchEngineConfig(device_type='cpu'))
    assert answers(pipe) == expected(shape, pipe)


def test_chunked_prefill_through_an_image(checkpoint, expected, loop):
    config = PytorchEngineConfig(device_type='cpu', block_size=16, max_prefill_token_num=48)
    pipe = pipeline(checkpoint(), config)
    assert answers(pipe) == expected('tiny', pipe)


def test_features_are_those_of_the_reference_in_float32(checkpoint):
    """Nothing on the way is rounded to fp16, whose error would be 1e-3 here."""
    encoder = load_vl_model(checkpoint(), backend_config=PytorchEngineConfig(device_type='cpu'))
    reference = Reference(checkpoint()).model
    for image in IMAGES:
        features, = encoder.forward([image], [{}])
        with torch.no_grad():
            expected = reference.extract_feature(pixel_values([image], reference.config))
        assert features.dtype == torch.float32
        torch.testing.assert_close(features, expected.flatten(0, 1), atol=2e-5, rtol=2e-5)


def test_the_encoder_holds_no_language_model(checkpoint):
    encoder = load_vl_model(checkpoint(), backend_config=PytorchEngineConfig(device_type='cpu'))
    assert not hasattr(encoder.model, 'language_model')
    assert not encoder.model.training
    assert {p.dtype for p in encoder.model.parameters()} == {torch.float32}
    assert {p.device.type for p in encoder.model.parameters()} == {'cpu'}


def test_stop_words_and_text_of_an_answer(checkpoint, loop):
    """The ordinary way: default configurations, chat template, text out."""
    pipe = pipeline(checkpoint(), PytorchEngineConfig(device_type='cpu'))
    config = GenerationConfig(max_new_tokens=4)
    answer = pipe(('Describe the image.', IMAGES[0]), gen_config=config)
    assert answer.finish_reason in ('stop', 'length')
    assert answer.text == pipe.tokenizer.decode(answer.token_ids)
