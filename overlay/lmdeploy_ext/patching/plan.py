"""What is to be applied to the installed LMDeploy."""
from dataclasses import dataclass
from pathlib import Path
from typing import FrozenSet, Tuple

from lmdeploy_ext.config import SettingError, Settings
from lmdeploy_ext.patching.catalogue import Declaration, discover
from lmdeploy_ext.patching.declaration import Patch, Seam
from lmdeploy_ext.patching.drift import Drift, find_drift
from lmdeploy_ext.patching.errors import PatchError
from lmdeploy_ext.patching.releases import release_of, require_supported
from lmdeploy_ext.patching.selection import select
from lmdeploy_ext.patching.source import installed_root


@dataclass(frozen=True)
class Plan:
    """What is to be applied to which LMDeploy.

    Attributes:
        root: the folder that holds the installed `lmdeploy/`.
        release: its release.
        entries: the catalogue.
        settings: the settings in force.
        selected: names of the selected patches.
        drifts: for each selected patch that cannot be applied, the reason.
    """
    root: Path
    release: str
    entries: Tuple[Declaration, ...]
    settings: Settings
    selected: FrozenSet[str]
    drifts: Tuple[Drift, ...]

    def due(self, entry: Declaration) -> bool:
        """Whether an entry is to run in this process."""
        return isinstance(entry, Seam) or (entry.name in self.selected
                                           and self.release in entry.upstream)


def make_plan() -> Plan:
    """Compare what is selected with what is installed. Imports no LMDeploy.

    Raises:
        PatchError: LMDeploy is missing or of another release, a setting or a declaration is wrong.
    """
    try:
        settings = Settings.from_env()
    except SettingError as error:
        raise PatchError(str(error)) from None
    root = installed_root()
    release = release_of(root)
    require_supported(release)
    entries = discover()
    selected = select(settings.patches, entries)
    patches = [entry for entry in entries if isinstance(entry, Patch) and entry.name in selected]
    drifts = [find_drift(patch, root, release) for patch in patches]
    return Plan(root, release, entries, settings, selected, tuple(d for d in drifts if d))
