"""The demo model on the CPU engine: its answers are those of the float32 reference."""
from pathlib import Path

from lmdeploy import PytorchEngineConfig, pipeline

import lmdeploy_ext.eval.demo
from tests.parity.engine import greedy
from tests.parity.pixels import picture
from tests.parity.reference import Reference
from tests.parity.test_images import expected_ids

MODEL = Path(lmdeploy_ext.eval.demo.__file__).parent / 'model'
TOKENS = 3
IMAGES = [picture(0, 448, 448), picture(1, 640, 480), picture(2, 480, 320)]
QUESTIONS = [('图中是否有三张或更多的床，或者上下铺？请回答是或否。', IMAGES[:1]),
             ('Are there three or more beds, or a bunk bed? Yes or No', IMAGES[1:2]),
             ('Which is larger?', IMAGES[1:]), ('Hello', [])]


def test_answers_are_those_of_the_reference(loop):
    pipe = pipeline(str(MODEL), PytorchEngineConfig(device_type='cpu'))
    prompts = [(question, images) if images else question for question, images in QUESTIONS]
    answers = pipe(prompts, gen_config=greedy(TOKENS))
    reference = Reference(str(MODEL))
    for answer, (question, images) in zip(answers, QUESTIONS):
        assert answer.token_ids == expected_ids(pipe, reference, question, images, TOKENS)
