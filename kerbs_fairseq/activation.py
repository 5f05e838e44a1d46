"""When the fairseq plugin becomes active: with fairseq, in whichever order the two are imported, and not without it."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Optional

from kerbs_fairseq import requirements

FAIRSEQ = "fairseq"
PLUGIN = "kerbs_fairseq.plugin"  # importing it activates it


class Loader(importlib.abc.Loader):
    """fairseq's own loader, with the plugin behind it."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        """As the loader would."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import fairseq, then activate the plugin; what keeps it from working is a warning, not fairseq's failure."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        fault = activate()
        if fault is not None:
            requirements.warn(fault)


class Finder(importlib.abc.MetaPathFinder):
    """Waits for the first import of fairseq, steps out of the way, and wraps its loader."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Answer the import system; None means: ask the next finder."""
        if fullname != FAIRSEQ:
            return None
        # a new list: removing an item from the one that is being iterated over would skip the next finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


def activate() -> Optional[str]:
    """Patch fairseq and register the plugin with it; the reason where that cannot be, else None."""
    fault: Optional[str] = importlib.import_module(PLUGIN).fault
    if fault is None:
        importlib.import_module(f"{PLUGIN}.user_dirs").import_others()
    return fault


def watch() -> None:
    """Activate the plugin now if fairseq is imported already, else when it is."""
    if FAIRSEQ not in sys.modules:
        sys.meta_path.insert(0, Finder())
        return
    fault = activate()
    if fault is not None:  # fairseq is importing us, through --user-dir: going on would only fail later
        requirements.stop(fault)
