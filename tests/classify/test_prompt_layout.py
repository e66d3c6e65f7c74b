"""`--prompt-first`: the prompt before the image, in what the model reads."""
import asyncio
import json

import pytest
from PIL import Image

import lmdeploy_ext.autopatch  # noqa: F401  before anything imports LMDeploy
from lmdeploy_ext.classify import prefix_caching
from lmdeploy_ext.classify.decode import Picture
from lmdeploy_ext.classify.engine import Question
from lmdeploy_ext.classify.errors import EngineError, SourceError
from lmdeploy_ext.classify.files import FolderSource
from lmdeploy_ext.classify.item import Item
from lmdeploy_ext.classify.pipeline_engine import _messages
from lmdeploy_ext.classify.prefix_caching import check_prefix_caching
from lmdeploy_ext.classify.prompt_layout import check_keeps_place, check_no_place, image_last
from lmdeploy_ext.classify.runner import RunSettings
from lmdeploy_ext.classify.source import check_source

from .checkpoint import write_yes_no_checkpoint
from .fakes import write_images
from .test_runner import ListSource, classify

PROMPT = '房间里有床吗？请只回答是或否。'


def test_the_engine_is_asked_with_the_place_of_the_image_behind_the_prompt(tmp_path):
    write_images(tmp_path / 'in', 2)
    for first, text in ((False, PROMPT), (True, f'{PROMPT}\n<IMAGE_TOKEN>')):
        engine, _ = classify(FolderSource(tmp_path / 'in'), tmp_path / f'{first}.jsonl',
                             run_settings=RunSettings(prompt=PROMPT, prompt_first=first))
        assert [question.prompt for question in engine.questions] == [text] * 2


def test_also_the_prompts_of_single_images(tmp_path):
    path = write_images(tmp_path, 1)[0]
    items = [Item(name, str(path), prompt=name) for name in ('one?', 'two?')]
    engine, _ = classify(ListSource(items), tmp_path / 'out.jsonl',
                         run_settings=RunSettings(prompt_first=True))
    assert sorted(question.prompt for question in engine.questions) == [
        'one?\n<IMAGE_TOKEN>', 'two?\n<IMAGE_TOKEN>']


@pytest.mark.parametrize('name', ['VLChatTemplateWrapper', 'InternVLChatTemplateWrapper',
                                  'LlavaVLChatTemplateWrapper', 'Qwen2VLChatTemplateWrapper'])
def test_chat_templates_put_the_image_there(name):
    """Of the installed release; the order of a message's parts decides nothing."""
    from lmdeploy.model import MODELS
    from lmdeploy.vl import templates
    if not hasattr(templates, name):
        pytest.skip('this release has no such model')
    wrapper = getattr(templates, name)(MODELS.get('internvl2-internlm2')())
    image = {'type': 'image_data', 'image_data': {'data': None}}

    def rendered(text, *, text_part_first):
        parts = [{'type': 'text', 'text': text}, image]
        return wrapper.messages2prompt([{'role': 'user', 'content': parts if text_part_first else
                                         parts[::-1]}])

    for text_part_first in (True, False):
        plain = rendered(PROMPT, text_part_first=text_part_first)
        assert plain.index('<IMAGE_TOKEN>') < plain.index(PROMPT)
        first = rendered(image_last(PROMPT), text_part_first=text_part_first)
        assert first.index(PROMPT) < first.index('<IMAGE_TOKEN>')
        assert first.count('<IMAGE_TOKEN>') == plain.count('<IMAGE_TOKEN>') == 1


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_yes_no_checkpoint(tmp_path_factory.mktemp('layout') / 'model')


def test_ids_before_the_image_are_those_of_the_instruction_and_the_same_for_all(model):
    import lmdeploy
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        pipe = lmdeploy.pipeline(str(model), lmdeploy.PytorchEngineConfig(device_type='cpu'))

        async def given(text, color, size):
            picture = Picture(b'', 'image/png', Image.new('RGB', size, color))
            question = Question(picture, text, None, {}, 1, 1)
            made = await pipe._get_prompt_input(_messages(question), True, True, None)
            (begin, end), = made['input_embedding_ranges']
            ids = made['input_ids']
            return ids[:begin], end - begin, ids[end:]

        async def both():
            return [[await given(text, *image)
                     for image in (('red', (40, 40)), ('blue', (200, 60)))]
                    for text in (PROMPT, image_last(PROMPT))]

        plain, first = loop.run_until_complete(both())
        decode = pipe.tokenizer.decode
        for before, _, behind in plain:
            assert PROMPT not in decode(before) and PROMPT in decode(behind)
        for before, _, behind in first:
            assert PROMPT in decode(before) and PROMPT not in decode(behind)
        assert first[0][0] == first[1][0] and first[0][1] != first[1][1]
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_a_prompt_that_says_itself_where_its_image_stands():
    check_no_place(None, 'the prompt')
    check_no_place(PROMPT, 'the prompt')
    with pytest.raises(SourceError, match='<IMAGE_TOKEN> in the prompt; expected one of them to '
                                          'say where the image stands: leave the other one out'):
        check_no_place('<IMAGE_TOKEN> a bed?', 'the prompt')


def test_a_batch_request_that_says_itself_where_its_image_stands(tmp_path):
    path = str(write_images(tmp_path, 1)[0])
    source = ListSource([Item('a', path, prompt='bed?'),
                         Item('b', path, prompt='see <IMAGE_TOKEN>, bed?')])
    with pytest.raises(SourceError, match="in the prompt of 'b'"):
        check_source(source, need_prompt=True, prompt_first=True)
    # it is asked the run's prompt, or has its own way
    assert check_source(source, prompt_first=True).total == 2
    assert check_source(source, need_prompt=True).total == 2


@pytest.mark.parametrize('config', [None, {}, {'model_type': 'minicpmv'}])
def test_a_model_that_may_not_see_an_image_behind_the_text(tmp_path, config):
    if config is not None:
        (tmp_path / 'config.json').write_text(json.dumps(config))
    kind = repr((config or {}).get('model_type'))
    with pytest.raises(EngineError, match=f'a model of the type {kind}; expected one whose images '
                                          'may stand anywhere, internvl_chat, .*: leave it out'):
        check_keeps_place(str(tmp_path))


@pytest.mark.parametrize('patch, backend, engine, refused', [
    ('off', 'auto', 'pytorch', True),
    ('off', 'pytorch', 'turbomind', True),
    ('off', 'auto', 'turbomind', False),
    ('ready', 'pytorch', 'pytorch', False),
])
def test_upstreams_prefix_cache_is_refused_where_it_mixes_images_up(
        monkeypatch, patch, backend, engine, refused):
    rows = [{'name': 'block_trie_match', 'state': patch}]
    monkeypatch.setattr(prefix_caching.patching, 'status', lambda: rows)
    monkeypatch.setattr('lmdeploy.archs.autoget_backend', lambda model: engine)
    if not refused:
        check_prefix_caching('model', backend, 'auto')
        return
    with pytest.raises(EngineError, match='without the patch block_trie_match: .* would answer '
                                          'about other images; select the patch in LMDEPLOY_EXT'):
        check_prefix_caching('model', backend, 'auto')
