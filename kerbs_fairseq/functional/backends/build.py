"""cpu.cpp: compiled when it is first needed, kept in a cache, and called through ctypes.

It needs a C++ compiler (``$CXX``, or c++, g++ or clang++ on the path) and the OpenMP library that torch brings along;
without them that is said once, and plain torch is used. ``KERBS_NATIVE=0`` asks for plain torch.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

logger = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("cpu.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
MINUTES = 5
FUNCTIONS = ("kerbs_forward", "kerbs_forward_words", "kerbs_backward", "kerbs_word_log_probs")


class Native(NamedTuple):
    """The library, or None and the reason."""

    library: Optional[ctypes.CDLL]
    reason: str


@functools.cache
def native() -> Native:
    """Compile and load, once in a process."""
    if os.environ.get("KERBS_NATIVE", "1") == "0":
        return Native(None, "switched off by KERBS_NATIVE=0")
    try:
        path, library = compiled()
    except subprocess.CalledProcessError as problem:
        why = (problem.stderr or "").strip().splitlines() or [str(problem)]
        return _without(f"{problem.cmd[0]} failed: {why[0]}")
    except (OSError, AttributeError, subprocess.SubprocessError) as problem:
        return _without(str(problem))
    return Native(library, f"compiled, {path}")


def _without(reason: str) -> Native:
    logger.warning(f"KerBS on this CPU runs in plain torch, which is slower: {reason}")
    return Native(None, reason)


def compiler() -> str:
    """The C++ compiler."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise OSError("no C++ compiler found; install one (Debian: apt install g++), or name it in CXX")


def caches() -> Iterator[Path]:
    """Where compiled libraries can be kept, the best place first."""
    if os.environ.get("KERBS_CACHE"):
        yield Path(os.environ["KERBS_CACHE"])
    elif os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"]) / "kerbs_fairseq"
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home, as in some containers
            yield Path.home() / ".cache" / "kerbs_fairseq"
    yield Path(tempfile.gettempdir()) / f"kerbs_fairseq-{os.getuid()}"


def compiled() -> tuple[Path, ctypes.CDLL]:
    """The library for this source, compiler and processor, compiled if it is not in a cache."""
    cxx = compiler()
    version = run([cxx, "--version"])
    key = "\0".join((SOURCE.read_text(encoding="utf8"), version, *FLAGS, processor()))
    name = f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    problems = []
    for folder in caches():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            only_mine(folder)
            return folder / name, library(cxx, folder / name)
        except OSError as problem:
            problems.append(f"{folder}: {problem.strerror or problem}")
    raise OSError(f"{'; '.join(problems)}: set KERBS_CACHE to a folder of yours")


def library(cxx: str, path: Path) -> ctypes.CDLL:
    """Load it, and build it before that if it is not there or broken."""
    for attempt in range(2):
        if attempt or not path.exists():
            build(cxx, path)
        only_mine(path)
        try:
            loaded = ctypes.CDLL(str(path))
            for name in FUNCTIONS:
                getattr(loaded, name).restype = None
            return loaded
        except (OSError, AttributeError):
            if attempt:
                raise
    raise AssertionError("not reached")


def only_mine(path: Path) -> None:
    """Never load what somebody else can write."""
    state = path.lstat()
    if state.st_uid != os.getuid() or (state.st_mode & 0o022 and not path.is_symlink()):
        raise OSError(f"{path.name} can be written by others")


def run(command: list[str]) -> str:
    """What a command prints."""
    limit = 60 * MINUTES
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=limit).stdout


def processor() -> str:
    """What code may be generated for: a home folder can be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = []
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")


def build(cxx: str, path: Path) -> None:
    """Compile; the library appears under its name only when it is whole, also if several processes do this at once."""
    logger.info("compiling the KerBS kernels for this CPU, once")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        half, whole = Path(folder) / "kernels.o", Path(folder) / path.name
        # linked without -fopenmp: torch has loaded an OpenMP library, and a second one would fight for the cores
        for command in (
            [cxx, *FLAGS, "-c", str(SOURCE), "-o", str(half)],
            [cxx, "-shared", str(half), "-o", str(whole)],
        ):
            run(command)
        whole.chmod(0o700)  # whatever the umask
        os.replace(whole, path)
