"""What was measured, and where: the commit and the GPU in the names and fields of results."""
import re
from typing import Any, Dict, Optional

from ..errors import EvalError
from ..provenance import REPOSITORY, commit


def measured_commit(given: Optional[str]) -> Dict[str, Any]:
    """The commit that is measured, looked for before minutes have gone by.

    Args:
        given: its id, where the code was copied without its .git.

    Raises:
        EvalError: nobody says which.
    """
    found = {'id': given, 'dirty': None} if given else commit()
    if found is None:
        raise EvalError(f'{REPOSITORY} is no git checkout, so the result would not say what was '
                        f'measured; give the commit with --commit')
    return found


def slug(name: str) -> str:
    """A name as a part of a file's name: of `NVIDIA H200`, `h200`."""
    return re.sub(r'[^a-z0-9]+', '-', name.lower().replace('nvidia', '')).strip('-')
