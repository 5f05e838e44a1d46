"""The supported versions of torch, fairseq and the packages that fairseq requires, and errors of one line for others.

Read from the packages' metadata, so that the check costs nothing and works where an import would fail.
"""

import importlib
import logging
import re
import sys
import warnings
from importlib import metadata
from typing import NamedTuple, NoReturn, Optional

from kerbs_fairseq.runs.errors import UserError, refuse


class Need(NamedTuple):
    """A package with the half-open range of versions that is supported and the way to get it."""

    package: str
    at_least: tuple[int, ...]
    below: tuple[int, ...]
    install: str

    def range(self) -> str:
        """The range as pip writes it."""
        low, high = (".".join(map(str, v)) for v in (self.at_least, self.below))
        return f">={low},<{high}"

    def admits(self, version: str) -> bool:
        """Whether ``version`` lies in the range; anything behind the numbers (rc1, +cpu) is ignored."""
        numbers = tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:3])
        return self.at_least <= numbers < self.below


NEEDS = (
    Need("torch", (2, 6), (3,), 'pip install "torch>=2.6,<3"'),
    Need("hydra-core", (1, 3, 2), (1, 4), 'pip install "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4"'),
    Need("omegaconf", (2, 3), (2, 4), 'pip install "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4"'),
    # last: what is said of fairseq helps only where it could be imported at all
    Need("fairseq", (0, 12, 2), (0, 12, 3), "pip install --no-deps fairseq==0.12.2"),
)
REINSTALL = "pip install --force-reinstall --no-deps fairseq==0.12.2"


def version_of(package: str) -> Optional[str]:
    """The installed version of ``package``, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def fault_of(need: Need) -> Optional[str]:
    """What is wrong with one needed package, and what to install; None if nothing is."""
    installed = version_of(need.package)
    if installed is None:
        return f"{need.package} is not installed: {need.install}"
    if not need.admits(installed):
        return f"{need.package} {installed} is not supported ({need.range()} is): {need.install}"
    return None


def faults() -> list[str]:
    """Everything that is wrong, one line each."""
    lines = [fault_of(need) for need in NEEDS]
    boot = boot_fault()
    return [line for line in [*lines, boot] if line is not None]


def fault() -> Optional[str]:
    """The first thing that keeps the plugin from working, or None; imports fairseq if nothing else is wrong."""
    return next(iter(faults()), None) or import_fault()


def import_fault() -> Optional[str]:
    """What happens when fairseq is imported, if that is an error."""
    # At every import fairseq recommends a package for speech synthesis; nobody here can do anything about it.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        importlib.import_module("fairseq")
    except Exception as error:
        return f"fairseq cannot be imported ({type(error).__name__}: {error}): {REINSTALL}"
    return None


def boot_fault() -> Optional[str]:
    """What is wrong with the boot shim that lets fairseq be imported on Python 3.11 and newer."""
    if sys.version_info < (3, 11) or "_kerbs_fairseq_boot" in sys.modules or "fairseq" in sys.modules:
        return None
    return (
        "the boot shim is not active, so fairseq cannot be imported on Python >= 3.11: "
        "install the package (pip install .) instead of only putting its folder on the path"
    )


class NotSupported(UserError, ImportError):
    """The fairseq part of the package cannot work here; the text says why, and what to install."""


def require(package: str) -> None:
    """Raise the ImportError that says what to install, where ``package`` is missing or not supported."""
    reason = next(fault_of(need) for need in NEEDS if need.package == package)
    if reason is not None:
        stop(reason)


def stop(reason: str) -> NoReturn:
    """End with one line: without a traceback where a fairseq command is the main program, else as an ImportError."""
    refuse(f"kerbs_fairseq: {reason}", NotSupported)


def warn(reason: str) -> None:
    """Say that the fairseq part of the package is not there, and why."""
    warnings.warn(f"kerbs_fairseq: the fairseq plugin is off: {reason}", stacklevel=3)
