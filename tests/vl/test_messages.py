"""The images of a request's messages, and that each is shown where it belongs."""
import pytest

from lmdeploy_ext.vl.image_errors import BadImageReference
from lmdeploy_ext.vl.messages import check_images_are_shown, images_of

TOKEN = '<IMAGE_TOKEN>'


def message(text, *images, role='user'):
    items = [] if text is None else [dict(type='text', text=text)]
    items += [dict(type='image_data', image_data=dict(data=image)) for image in images]
    return dict(role=role, content=items)


@pytest.mark.parametrize('messages', [
    [message('?', 1)],
    [message('?', 1, 2)],
    [message(f'{TOKEN} ? {TOKEN}', 1, 2)],
    [message(f'<img>{TOKEN}</img>?', 1), dict(role='assistant', content='!'), message('?', 2)],
    [dict(role='assistant', content=None), message('?', 1)],
    [message('be kind', role='system'), message('?', 1)],
    [dict(role='user', content=f'what is {TOKEN}?')],
    [message(f'what is {TOKEN}?')],
])
def test_images_in_their_places(messages):
    check_images_are_shown(messages)


@pytest.mark.parametrize('messages, problem', [
    ([message('?', 1, role='system'), message('?')], "a message of the 'system'"),
    ([message('?'), message('!', 1, role='assistant'), message('?', 2)], "of the 'assistant'"),
    ([message(None, 1)], 'without a text'),
    ([message('?'), message(None, 1)], 'without a text'),
    ([message(f'{TOKEN}?', 1, 2)], f'found 1 times {TOKEN} beside 2 images'),
    ([message(f'{TOKEN}{TOKEN}?', 1)], f'found 2 times {TOKEN} beside 1 images'),
    ([message(f'what is {TOKEN}?'), message('?', 1)], f'found 1 times {TOKEN} beside 0 images'),
    ([dict(role='system', content=TOKEN), message('?', 1)], f'found 1 times {TOKEN} beside 0'),
])
def test_images_that_would_not_be_seen_in_their_places(messages, problem):
    with pytest.raises(BadImageReference) as caught:
        check_images_are_shown(messages)
    assert problem in str(caught.value) and '\n' not in str(caught.value)


def test_a_prompt_that_is_text_has_no_images():
    assert images_of(f'what is {TOKEN}?') == ([], [])
