"""`/v1/chat/interactive` with an image: the server's event loop does not load it."""
from typing import Any


def leave_images_to_loader(request: Any, engine: Any) -> None:
    """Put a request's images into its messages, unread, where the engine has an image loader.

    Args:
        request: upstream's `GenerateRequest`; changed in place.
        engine: the `AsyncEngine` that is going to answer it.
    """
    template = getattr(engine, 'vl_prompt_template', None)
    if request.image_url and getattr(template, 'image_loader', None) is not None:
        request.prompt = template.prompt_to_messages((request.prompt, request.image_url))
        request.image_url = None
