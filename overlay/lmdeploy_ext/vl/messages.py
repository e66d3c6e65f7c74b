"""The images of a request in OpenAI's message format."""
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from lmdeploy_ext.vl.image_errors import BadImageReference

# what an item of a message's content is, and where in it the image stands
_KEYS = {'image_url': 'url', 'image_data': 'data'}


def images_of(messages: Iterable[Mapping[str, Any]]) -> Tuple[List[Any], List[Dict[str, Any]]]:
    """References to the images of the user's messages, in order, and what else stands beside each.

    Args:
        messages: each has a `content` that is text or a list of items; an image's item is
            `{'type': 'image_url', 'image_url': {'url': …, 'detail': …}}`, or with `image_data` and
            `data` in the names' places.

    Raises:
        BadImageReference: an image's item holds no image.
    """
    references, options = [], []
    for message in messages:
        if message['role'] != 'user' or isinstance(message['content'], str):
            continue
        for item in message['content']:
            if item['type'] in _KEYS:
                reference, rest = _split(item)
                references.append(reference)
                options.append(rest)
    return references, options


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
