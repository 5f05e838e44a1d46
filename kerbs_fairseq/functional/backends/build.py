"""Compile cpu.cpp when it is first needed, keep the library in a cache, and load it with ctypes.

This needs a C++ compiler (``$CXX``, or c++, g++ or clang++ on the path) and the OpenMP library that comes with torch.
Without them a warning is logged once and plain torch is used. ``KERBS_NATIVE=0`` selects plain torch, ``KERBS_CACHE``
is the cache folder. The file name of a library contains the checksum of its content: a truncated or changed library
would crash the process, so it is compiled again instead of being loaded.

``python build.py`` tries to load the library in a process of its own, which may crash, and prints the result.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

logger = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("cpu.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
FUNCTIONS = ("kerbs_forward", "kerbs_forward_words", "kerbs_backward", "kerbs_word_log_probs")
COMPILERS = ("c++", "g++", "clang++")
QUESTION_SECONDS, BUILD_SECONDS = 30, 300  # time limits for the compiler


class Native(NamedTuple):
    """The library and its path, or None and the reason."""

    library: Optional[ctypes.CDLL]
    reason: str


@functools.cache
def native() -> Native:
    """Compile and load the library, once per process."""
    asked = os.environ.get("KERBS_NATIVE", "1")
    if asked == "0":
        return Native(None, "switched off by KERBS_NATIVE=0")
    if asked not in ("", "1"):
        logger.warning(f"KERBS_NATIVE={asked} is ignored: it can be 0 or 1")
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


def compiler() -> list[str]:
    """Return the command of the C++ compiler, with any arguments from CXX."""
    asked = os.environ.get("CXX", "")
    try:
        command = shlex.split(asked)
    except ValueError:  # unbalanced quotes
        command = [asked]
    if command and shutil.which(command[0]):
        return command
    first = next((name for name in COMPILERS if shutil.which(name)), None)
    if first is None:
        raise OSError("no C++ compiler found; install one (Debian: apt install g++), or name it in CXX")
    if command:
        logger.warning(f"CXX={asked} is ignored: there is no program {command[0]}; {first} is used")
    return [first]


def caches() -> Iterator[Path]:
    """Yield the folders in which compiled libraries can be kept, the preferred one first."""
    if os.environ.get("KERBS_CACHE"):
        yield Path(os.environ["KERBS_CACHE"])
    elif os.environ.get("XDG_CACHE_HOME"):
        yield Path(os.environ["XDG_CACHE_HOME"]) / "kerbs_fairseq"
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home, as in some containers
            yield Path.home() / ".cache" / "kerbs_fairseq"
    yield Path(tempfile.gettempdir()) / f"kerbs_fairseq-{os.getuid()}"


def compiled() -> tuple[Path, ctypes.CDLL]:
    """Return the library for this source, compiler and processor; compile it if it is not in a cache."""
    cxx = compiler()
    key = "\0".join((SOURCE.read_text(encoding="utf8"), *cxx, *FLAGS, run([*cxx, "--version"]), processor(cxx)))
    name = f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    problems = []
    for folder in caches():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            only_mine(folder)
            built = library(cxx, folder, name)
        except OSError as problem:
            problems.append(f"{folder}: {problem.strerror or problem}")
            continue
        if problems and os.environ.get("KERBS_CACHE"):
            logger.warning(f"KERBS_CACHE is ignored: {problems[0]}; {folder} is used")
        return built
    raise OSError(f"{'; '.join(problems)}: set KERBS_CACHE to a folder of yours")


def library(cxx: list[str], folder: Path, name: str) -> tuple[Path, ctypes.CDLL]:
    """Load the undamaged library of that name; build it first if there is none."""
    kept = [path for path in sorted(folder.glob(f"{name}-*.so")) if is_whole(path)]
    for path in kept or [build(cxx, folder, name)]:
        try:
            return path, loaded(path)
        except (OSError, AttributeError):
            if not kept:
                raise
            path.unlink()
    path = build(cxx, folder, name)
    return path, loaded(path)


def loaded(path: Path) -> ctypes.CDLL:
    """Load a library and declare that its functions return nothing."""
    functions = ctypes.CDLL(str(path))
    for name in FUNCTIONS:
        getattr(functions, name).restype = None
    return functions


def checksum(path: Path) -> str:
    """Return the checksum of a library, as used in its file name."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def is_whole(path: Path) -> bool:
    """Return whether a library is as it was compiled, else delete it; raise OSError if others could have written it."""
    only_mine(path)
    if path.stem.endswith(f"-{checksum(path)}"):
        return True
    logger.warning(f"{path} is damaged: it is compiled again")
    path.unlink()
    return False


def only_mine(path: Path) -> None:
    """Raise OSError if another user can write ``path``, or replace a folder above it."""
    real = Path(os.path.realpath(path))
    state = real.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise OSError(f"{path.name} can be written by others")
    for parent in real.parents:
        state = parent.stat()
        open_to_all = state.st_mode & stat.S_IWOTH and not state.st_mode & stat.S_ISVTX
        if open_to_all or state.st_uid not in (0, os.getuid()):
            raise OSError(f"{parent}, which {path.name} is in, can be written by others")


def run(command: list[str], seconds: float = QUESTION_SECONDS) -> str:
    """Return the output of a command; it and its child processes are killed after a time limit."""
    # not by runs/process.py: functional imports torch alone, and this file is a program that imports nothing of ours
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise OSError(f"{shlex.join(command[:1])} was stopped after {seconds:g} seconds") from None
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, out, err)
    return out


def processor(cxx: list[str]) -> str:
    """Return the compiler's macros for this processor: different machines may share a home folder and its cache."""
    return run([*cxx, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])


def build(cxx: list[str], folder: Path, name: str) -> Path:
    """Compile the library; it gets its name only when it is complete, so that several processes may do this at once."""
    logger.info(f"compiling the KerBS kernels for this CPU, once; stopped after {BUILD_SECONDS} seconds")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        half, whole = Path(temporary) / "kernels.o", Path(temporary) / "kernels.so"
        # linked without -fopenmp: torch has loaded an OpenMP library, and a second one would compete for the cores
        for command in (
            [*cxx, *FLAGS, "-c", str(SOURCE), "-o", str(half)],
            [*cxx, "-shared", str(half), "-o", str(whole)],
        ):
            run(command, BUILD_SECONDS)
        whole.chmod(0o700)  # independent of the umask
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        path = folder / f"{name}-{checksum(whole)}.so"
        os.replace(whole, path)
    return path


if __name__ == "__main__":
    sys.path[:] = [folder for folder in sys.path if Path(folder) != SOURCE.parent]  # its torch.py would hide torch
    import torch  # noqa: F401  (brings the OpenMP library)

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    print(native().reason)
