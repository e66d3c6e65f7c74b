"""One line in the server's log: release, patches, settings."""
import logging
from collections import defaultdict
from typing import List, Mapping, Sequence

import lmdeploy_ext
from lmdeploy_ext.patching import settings_in_force, status

# The server's own: LMDeploy's logger is at ERROR unless --log-level says otherwise.
logger = logging.getLogger('uvicorn.error')


def summary(rows: Sequence[Mapping], settings: Mapping) -> str:
    """Patches by state, seams left out, and the settings that are set."""
    names = defaultdict(list)
    for row in rows:
        if row['kind'] == 'patch':
            names[row['state']].append(row['name'])
    parts: List[str] = [f'{state}: {", ".join(sorted(names[state]))}' for state in sorted(names)]
    chosen = [f'{name}={value}' for name, value in settings.items() if value is not None]
    return '; '.join(parts + [f'settings: {", ".join(chosen)}'])


def log_patches() -> None:
    """Log `summary` of this process at INFO."""
    logger.info('lmdeploy-ext %s: %s', lmdeploy_ext.__version__,
                summary(status(), settings_in_force()))
