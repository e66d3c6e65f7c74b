"""The server's log says what it runs with."""
from types import ModuleType

from lmdeploy_ext.patching import seam


@seam(after='lmdeploy.serve.openai.api_server',
      why='Adds a start-up handler that logs lmdeploy-ext, its patches and its settings: a log '
      'that does not say what it ran with proves nothing.')
def log_patches_at_startup(api_server: ModuleType) -> None:
    from lmdeploy_ext.serve.startup_log import log_patches

    # 0.6.0 and 0.6.1 make the application at import; since 0.6.2 it is made later, from a router
    routes = api_server.router if hasattr(api_server, 'router') else api_server.app
    routes.add_event_handler('startup', log_patches)
