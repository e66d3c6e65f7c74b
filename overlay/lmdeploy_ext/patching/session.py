"""The patches of this process: check all of them, apply each when its module has run, undo them.

The import system calls `verify` before `lmdeploy` runs and `module_has_run` after each of its
modules, and holds that module's lock meanwhile. So the lock here guards the tables only: held
while a patch imports what it needs, it would deadlock with another thread's import.
"""
import importlib
import logging
import sys
import threading
from types import ModuleType
from typing import Dict, List, Optional, Set

from lmdeploy_ext.patching.aliases import rebind
from lmdeploy_ext.patching.apply import Applied, apply
from lmdeploy_ext.patching.catalogue import Declaration
from lmdeploy_ext.patching.declaration import Patch, Seam
from lmdeploy_ext.patching.drift import drift_message
from lmdeploy_ext.patching.errors import PatchError, PatchImportError
from lmdeploy_ext.patching.plan import Plan, make_plan

logger = logging.getLogger('lmdeploy_ext')


class Session:
    """The state of one process.

    Attributes:
        plan: what `verify` decided, or None before it ran and after `undo`.
    """

    def __init__(self) -> None:
        self.plan: Optional[Plan] = None
        self._lock = threading.Lock()
        self._history: List[Applied] = []
        self._current: Dict[str, Applied] = {}
        self._registered: Set[str] = set()

    def verify(self) -> None:
        """Decide what to apply.

        Raises:
            PatchImportError: it cannot be applied; the message says why and what to do.
        """
        try:
            plan = make_plan()
            if plan.drifts:
                raise PatchError(drift_message(list(plan.drifts), plan.settings.patches))
        except PatchError as error:
            raise PatchImportError(str(error)) from None
        self.plan = plan

    def module_has_run(self, module: ModuleType) -> None:
        """Apply what waits for a module that was executed, or executed again, just now.

        Raises:
            PatchError: a patch does not fit; the import of the module fails with it.
        """
        with self._lock:
            self._registered -= {e.name for e in self._waiting_for(module.__name__)}
        # only LMDeploy itself can have copied names from a module that has not run to its end
        self._apply_to(module, everywhere=False)

    def catch_up(self) -> None:
        """Apply what waits for modules that ran before the finder was there.

        Raises:
            PatchError: a patch does not fit.
        """
        for name in sorted({entry.module for entry in self.plan.entries} & set(sys.modules)):
            # importing waits for another thread that may be executing it
            self._apply_to(importlib.import_module(name), everywhere=True)

    def undo(self) -> None:
        """Put back every original, also where it was copied from, and forget the plan.

        What a seam registered stays.
        """
        with self._lock:
            history, self._history, self._current = self._history, [], {}
            self.plan = None
        for applied in reversed(history):
            applied.undo()
        rebind([(new, old) for a in history for old, new in a.pairs()], everywhere=True)

    def in_force(self, entry: Declaration) -> bool:
        """Whether a patch stands where it was put, or a seam has registered."""
        if isinstance(entry, Seam):
            return entry.name in self._registered
        module = sys.modules.get(entry.module)
        return module is not None and self._stands_in(entry, module)

    def has_run(self, entry: Declaration) -> bool:
        """Whether the module that an entry waits for is loaded: what is not in force is late."""
        return entry.module in sys.modules

    def _waiting_for(self, module: str) -> List[Declaration]:
        plan = self.plan
        entries = plan.entries if plan is not None else ()
        return [entry for entry in entries if entry.module == module and plan.due(entry)]

    def _apply_to(self, module: ModuleType, everywhere: bool) -> None:
        pairs = []
        for entry in self._waiting_for(module.__name__):
            if isinstance(entry, Seam):
                self._register(entry, module)
            elif not self._stands_in(entry, module):
                applied = apply(entry, module)
                with self._lock:
                    self._history.append(applied)
                    self._current[entry.name] = applied
                pairs += applied.pairs()
                logger.info('patch %s (%s) applied to %s', entry.name, entry.group, entry.target)
        if pairs:
            rebind(pairs, everywhere)

    def _register(self, seam: Seam, module: ModuleType) -> None:
        if seam.name not in self._registered:
            seam(module)
            self._registered.add(seam.name)

    def _stands_in(self, patch: Patch, module: ModuleType) -> bool:
        """Whether the patch stands in this very module, and not in one that was loaded before."""
        applied = self._current.get(patch.name)
        return applied is not None and applied.stands_in(module)


session = Session()
