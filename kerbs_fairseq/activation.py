"""Activate the fairseq plugin when fairseq is imported, before or after this package, and only then."""

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
    """Wrapper of fairseq's own loader that activates the plugin after fairseq has been imported."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        """Return what the wrapped loader returns."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import fairseq, then activate the plugin; if that is not possible, warn instead of failing the import."""
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        fault = activate()
        if fault is not None:
            requirements.warn(fault)


class Finder(importlib.abc.MetaPathFinder):
    """Meta path finder that, at the first import of fairseq, removes itself and wraps fairseq's loader."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Return the spec of fairseq with the wrapped loader, or None for any other module (ask the next finder)."""
        if fullname != FAIRSEQ:
            return None
        # a new list: removing an item from the one that is being iterated over would skip the next finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


def activate() -> Optional[str]:
    """Patch fairseq and register the plugin with it; return the reason if that is not possible, else None."""
    fault: Optional[str] = importlib.import_module(PLUGIN).fault
    if fault is None:
        importlib.import_module(f"{PLUGIN}.user_dirs").import_others()
    return fault


def watch() -> None:
    """Activate the plugin now if fairseq has been imported already, else as soon as it is imported."""
    if FAIRSEQ not in sys.modules:
        sys.meta_path.insert(0, Finder())
        return
    fault = activate()
    if fault is not None:  # fairseq imports this package through --user-dir: continuing would only fail later
        requirements.stop(fault)
