"""The images of a request in OpenAI's message format."""
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from lmdeploy_ext.vl.image_errors import BadImageReference, shortened

IMAGE_TOKEN = '<IMAGE_TOKEN>'  # LMDeploy's, where a text says itself where its images stand
# what an item of a message's content is, and where in it the image stands
_KEYS = {'image_url': 'url', 'image_data': 'data'}


def images_of(
    messages: Union[str, Iterable[Mapping[str, Any]]]
) -> Tuple[List[Any], List[Dict[str, Any]]]:
    """References to the images of the user's messages, in order, and what else stands beside each.

    Args:
        messages: each has a `content` that is text or a list of items; an image's item is
            `{'type': 'image_url', 'image_url': {'url': …, 'detail': …}}`, or with `image_data` and
            `data` in the names' places. A prompt that is text already (`/v1/completions`) has
            no images.

    Raises:
        BadImageReference: an image's item holds no image.
    """
    references, options = [], []
    if isinstance(messages, str):
        return references, options
    for message in messages:
        if message['role'] != 'user' or isinstance(message['content'], str):
            continue
        for item in message['content']:
            if item['type'] in _KEYS:
                reference, rest = _split(item)
                references.append(reference)
                options.append(rest)
    return references, options


def check_images_are_shown(messages: Iterable[Mapping[str, Any]]) -> None:
    """Raises BadImageReference where the model would not see an image, or see it in the place of
    another: in a message that is not the user's, or beside a text that has places for a different
    number of images.

    A text with places in a request without any image is left alone: it may be about the word.
    """
    messages = [(message['role'], *_text_and_images(message['content'])) for message in messages]
    if not any(images for _, _, images in messages):
        return
    for role, text, images in messages:
        if images and role != 'user':
            raise BadImageReference(f'found an image in a message of the {shortened(str(role))}; '
                                    'expected images in messages of the user; put it there')
        if images and text is None:
            raise BadImageReference('found a message with an image and without a text; expected '
                                    'both; add {"type": "text", "text": …}')
        places = (text or '').count(IMAGE_TOKEN)
        if places not in (0, images):
            raise BadImageReference(f'found {places} times {IMAGE_TOKEN} beside {images} images '
                                    'in a message; expected one for each image, or none; '
                                    'correct the text')


def _text_and_images(content: Any) -> Tuple[Optional[str], int]:
    """The text that upstream takes of a message, None for none, and how many images it has."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None, 0
    texts = [item.get('text') for item in content if item['type'] == 'text']
    images = sum(item['type'] in _KEYS for item in content)
    return (texts[-1] if texts else None), images


def _split(item: Mapping[str, Any]) -> Tuple[Any, Dict[str, Any]]:
    kind = item['type']
    key, value = _KEYS[kind], item.get(kind)
    if not isinstance(value, Mapping) or value.get(key) is None:
        raise BadImageReference(f'an {kind} without {key} in a message; '
                                f'send {{"type": "{kind}", "{kind}": {{"{key}": …}}}}')
    rest = dict(value)
    return rest.pop(key), rest


def question_about(text: str, images: Any) -> List[Dict[str, Any]]:
    """Messages for a text and an image, or a list of images; nothing is loaded."""
    images = images if isinstance(images, list) else [images]
    items = [{'type': 'image_data', 'image_data': {'data': image}} for image in images]
    return [{'role': 'user', 'content': [{'type': 'text', 'text': text}, *items]}]
