"""What logs, results and reports say about the patches they ran with."""
import dataclasses
from typing import Any, Dict, List

from lmdeploy_ext.patching.catalogue import Declaration
from lmdeploy_ext.patching.declaration import Seam
from lmdeploy_ext.patching.finder import armed
from lmdeploy_ext.patching.plan import Plan, make_plan
from lmdeploy_ext.patching.session import session


def status() -> List[Dict[str, Any]]:
    """One row for each patch and seam, by name, ready for JSON.

    Works before and after LMDeploy was imported, and imports nothing of it. The keys: `name`,
    `group` (None for a seam), `kind` (patch or seam), `state`, `target` (for a seam, the module
    after which it runs), `releases` (None for a seam) and `why`. The states:

    - applied: in force in this process;
    - ready: in force as soon as the target's module is imported;
    - off: not selected, or the process is not armed, or other code has taken its place;
    - not needed: the installed release does not have what the patch changes;
    - drifted: the source is not what the patch was written for; LMDeploy refuses to load.

    Raises:
        PatchError: LMDeploy is missing or of another release, a setting or a declaration is wrong.
    """
    plan = session.plan or make_plan()
    return [_row(entry, _state(entry, plan)) for entry in plan.entries]


def settings_in_force() -> Dict[str, Any]:
    """Every setting of `lmdeploy_ext.config` as this process uses it, and whether it is `armed`.

    Raises:
        PatchError: as for `status`.
    """
    plan = session.plan or make_plan()
    return {**dataclasses.asdict(plan.settings), 'armed': armed()}


def _state(entry: Declaration, plan: Plan) -> str:
    if session.in_force(entry):
        return 'applied'
    if isinstance(entry, Seam):
        return 'ready' if armed() else 'off'
    if entry.name not in plan.selected:
        return 'off'
    if plan.release not in entry.upstream:
        return 'not needed'
    if entry.name in [drift.patch.name for drift in plan.drifts]:
        return 'drifted'
    return 'ready' if armed() and not session.has_run(entry) else 'off'


def _row(entry: Declaration, state: str) -> Dict[str, Any]:
    is_seam = isinstance(entry, Seam)
    return {
        'name': entry.name,
        'group': None if is_seam else entry.group,
        'kind': 'seam' if is_seam else 'patch',
        'state': state,
        'target': entry.after if is_seam else entry.target,
        'releases': None if is_seam else entry.releases,
        'why': entry.why,
    }
