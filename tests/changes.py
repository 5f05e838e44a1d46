"""Print as JSON what is changed at run time, step by step: ``python -S tests/changes.py FOLDER MODULE...``.

Without ``site`` Python reads no ``.pth`` file: this program imports the boot shim itself. Then it imports the modules,
and activates the plugin in FOLDER as ``--user-dir`` does, without any repair. Then it makes the repairs one by one.
"""

import atexit
import contextlib
import importlib
import json
import logging
import operator
import signal
import site
import sys
import types
import warnings
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

PACKAGES = ("fairseq", "fairseq_cli", "hydra", "omegaconf")
LISTS = ("sys.argv", "sys.meta_path", "sys.path_hooks", "warnings.filters")
OURS = ("kerbs_fairseq", "_kerbs_fairseq_boot", "__main__")
Snapshot = dict[str, tuple[str, Any]]  # name: the module in which it was found, and its value


def root(name: str) -> str:
    """The first part of a dotted name."""
    return name.partition(".")[0]


def attributes(name: str, of: Any, package: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Every attribute of a module or class, and of the classes of the same package that are found there."""
    for key, value in list(vars(of).items()):
        yield f"{name}.{key}", value
        if issubclass(type(value), type) and id(value) not in seen:
            home = vars(value).get("__module__")
            if isinstance(home, str) and root(home) == package:
                seen.add(id(value))
                yield from attributes(f"{home}.{value.__qualname__}", value, package, seen)


def members(value: Any) -> Any:
    """What is compared: the members of a list or dict, by identity; anything else itself."""
    if type(value) is dict:
        return [*value, *value.values()]
    return list(value) if type(value) is list else value


def snapshot(everything: bool = False) -> Snapshot:
    """All attributes of PACKAGES, and what Python calls by itself; if asked, the functions of all other modules too."""
    taken: Snapshot = {}
    seen: set[int] = set()
    for module in {id(module): module for module in list(sys.modules.values())}.values():
        name = getattr(module, "__name__", "")
        package = root(name)
        if not isinstance(module, types.ModuleType) or package in OURS:
            continue
        ours = package in PACKAGES
        if not (everything or ours or package in ("sys", "warnings", "dataclasses")):
            continue
        for key, value in attributes(name, module, package, seen):
            if ours or key in LISTS or (callable(value) and not isinstance(value, types.ModuleType)):
                taken[key] = name, members(value)
        taken.pop(f"{name}.__warningregistry__", None)
    for number in signal.valid_signals():
        taken[f"signal {int(number)}"] = "", signal.getsignal(number)
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and root(name) != "kerbs_fairseq":
            taken[f'logging.getLogger("{name}").level'] = "", logger.level
    return taken


def differ(old: Any, new: Any) -> bool:
    """Whether two values of a snapshot differ."""
    if type(old) is list and type(new) is list:
        return len(old) != len(new) or any(map(operator.is_not, old, new))
    return old is not new


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """The names with other values, or without one before; not those in modules that were imported meanwhile."""
    homes = {home for home, _ in before.values()}
    nothing = "", object()
    changed = [name for name, (_, new) in after.items() if differ(before.get(name, nothing)[1], new)]
    return sorted(
        [name for name in changed if after[name][0] in homes] + [name for name in before if name not in after]
    )


def wrappers(value: Any) -> list[str]:
    """The modules of ours whose functions are wrapped around a function, the outermost first."""
    home = getattr(value, "__globals__", {}).get("__name__", "")
    inner = getattr(value, "__wrapped__", None)
    return [home.rpartition(".")[2], *wrappers(inner)] if root(home) == "kerbs_fairseq" else []


def boot() -> set[str]:
    """What the boot shim changes in the end: at the start of Python, and when fairseq is imported by its commands."""
    importlib.import_module("dataclasses")
    arguments, hook, callbacks = sys.argv, sys.excepthook, atexit._ncallbacks()
    sys.argv = ["fairseq-train", "--user-dir", "kerbs_fairseq", "--user-dir", "other"]
    before = snapshot()
    watch = importlib.import_module("_kerbs_fairseq_boot").Watch
    changed = {*changes(before, snapshot())}
    watch.find_spec("fairseq")
    changed |= {*changes(before, snapshot())}
    sys.argv = ["fairseq-train", "--user-dir", "other", "--arch", "kerbs_lstm"]
    before = snapshot()
    watch.find_spec("fairseq")
    changed |= {*changes(before, snapshot())}
    if atexit._ncallbacks() > callbacks:
        changed.add("atexit.register")
    sys.argv, sys.excepthook = arguments, hook
    return changed


def main(folder: str, *modules: str) -> None:
    """Print the changes by the shim, the plugin and each repair, all together, and without fairseq."""
    site.sethelper()  # fairseq has metadata={help: ...}
    result: dict[str, Any] = {"boot": sorted(boot())}
    for module in modules:
        importlib.import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        all_before, loaded = snapshot(everything=True), set(sys.modules)
    before = snapshot()
    utils, trainer = sys.modules["fairseq.utils"], sys.modules["fairseq.trainer"]
    utils.import_user_module(Namespace(user_dir=folder))
    result["imported"] = sorted(name for name in set(sys.modules) - loaded if root(name) in PACKAGES)
    after = snapshot()
    result["plugin"] = changes(before, after)
    result["wrappers"] = {name: wrappers(after[name][1]) for name in result["plugin"]}
    result["repairs"] = {}
    for patch in importlib.import_module("kerbs_fairseq.plugin.fairseq_patches").PATCHES:
        before = after
        patch.make()
        with contextlib.suppress(AttributeError):
            trainer.Trainer(None, None, None, None)  # one repair waits for it
        after = snapshot()
        result["repairs"][patch.name] = changes(before, after)
    result["all"] = changes(all_before, snapshot(everything=True))
    fairseq = sys.modules.pop("fairseq")
    importlib.import_module("kerbs_fairseq.activation").watch()
    sys.modules["fairseq"] = fairseq
    result["waiting"] = changes(after, snapshot())
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
