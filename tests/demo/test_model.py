"""The committed demo model: small, complete, asked as LMDeploy asks, and able to answer."""
import asyncio
import inspect

import numpy as np
import pytest
import torch
from lmdeploy.model import MODELS
from lmdeploy.serve.vl_async_engine import VLAsyncEngine
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.vl.templates import InternVLChatTemplateWrapper
from PIL import Image

from lmdeploy_ext.eval.demo import questions
from lmdeploy_ext.eval.demo.check import MODEL, figures, main, table
from lmdeploy_ext.eval.demo.picture import draw
from lmdeploy_ext.eval.demo.reference import Reference, from_bytes


@pytest.fixture(scope='module')
def reference():
    torch.set_num_threads(2)
    return Reference.load(MODEL)


def test_the_folder_is_small_and_holds_no_code():
    files = [file for file in MODEL.iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 10 * 1024**2
    assert not [file for file in files if file.suffix == '.py']
    assert {'config.json', 'model.safetensors', 'tokenizer.json'} <= {file.name for file in files}


def test_shape(reference):
    config = reference.model.config
    assert reference.model.num_image_token == 64
    assert config.vision_config.image_size == 448 and config.vision_config.patch_size == 28
    llm = config.llm_config
    assert llm.hidden_size // llm.num_attention_heads == 128
    assert llm.architectures == ['Qwen2ForCausalLM']


def test_answers_are_single_tokens(reference):
    for word in ('是', '否', 'Yes', 'No', *'0123456'):
        assert len(reference.tokenizer.encode(word, add_special_tokens=False)) == 1


class Encoder:
    """Stands for LMDeploy's image encoder: two tiles."""

    async def async_infer(self, images, params=None):
        return [torch.zeros(128, 256)]


def lmdeploy_ids(question: str) -> list:
    """The ids that LMDeploy feeds for an image of two tiles, by its own code."""
    engine = VLAsyncEngine.__new__(VLAsyncEngine)
    engine.vl_encoder = Encoder()
    engine.vl_prompt_template = InternVLChatTemplateWrapper(MODELS.get('internvl2-internlm2')())
    engine.tokenizer = Tokenizer(str(MODEL))
    engine.chat_template = engine.vl_prompt_template.chat_template
    messages = [{'role': 'user', 'content': [
        {'type': 'text', 'text': question},
        {'type': 'image_data', 'image_data': {'data': Image.new('RGB', (64, 64))}}]}]
    found = engine._get_prompt_input(messages, True, True, '')
    result = asyncio.run(found) if inspect.isawaitable(found) else found
    return result['input_ids']


@pytest.mark.parametrize('question', list(questions.answers(0, 0)))
def test_prompt_is_the_one_lmdeploy_feeds(reference, question):
    ours = reference.input_ids(2, question)
    context = reference.model.img_context_token_id
    assert [0 if token == context else token for token in ours] == lmdeploy_ids(question)
    assert ours.count(context) == 128


def test_the_model_answers_small_pictures_right(reference):
    pictures = [draw('test', 0, index) for index in range(48)]
    small = [drawn for drawn in pictures if max(drawn.width, drawn.height) <= 640]
    answers = reference.probabilities(small, lambda drawn: from_bytes(drawn.jpeg), 12)
    hits = [(p >= 0.5) == questions.is_positive(d.beds, d.bunks) for d, p in answers]
    assert len(hits) >= 20
    assert np.mean(hits) >= 0.9  # eval/demo/README.md has its figures


def test_figures_and_table():
    sizes = [(480, 320), (360, 480), (480, 320)]
    rows = [{'label': label, 'probability': p, 'width': w, 'height': h, 'sort': 'hall'}
            for (label, p), (w, h) in zip([('是', 0.9), ('是', 0.4), ('否', 0.6)], sizes)]
    parts = figures(rows)
    assert parts['all'].recall.value == 0.5 and parts['all'].precision.value == 0.5
    assert parts['480x320'].accuracy.total == 2 and parts['480x360'].accuracy.total == 1
    assert '50.0 (' in table(parts)


def test_check_without_a_model_says_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(['--model', str(tmp_path)])
    assert 'has no config.json; give the folder of a checkpoint' in capsys.readouterr().err


def test_check_without_pictures_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(['--count', '0'])
    assert 'must be at least 1' in capsys.readouterr().err
