"""An image that cannot be used is answered with status 400 and the reason."""
from types import ModuleType

from lmdeploy_ext.patching import seam


@seam(after='lmdeploy.serve.openai.api_server',
      why="Wraps the server's endpoints: an UnreadableImage becomes a 400 as upstream's own "
      'refusals are, for streams too, whose status upstream sends before the image is read.')
def answer_unreadable_images(api_server: ModuleType) -> None:
    from lmdeploy_ext.serve import image_errors
    image_errors.answer_unreadable_images(api_server)
