"""cpu.cpp: compiled when it is first needed, kept in a cache, and called through ctypes.

It needs a C++ compiler (``$CXX``, or c++, g++ or clang++ on the path) and the OpenMP library that torch brings along;
without them that is said once, and the plain passes are used. ``KERBS_NATIVE=0`` asks for the plain ones.
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
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.torch import Columns, Rows, Totals
from kerbs_fairseq.functional.kernel import KERNELS

logger = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("cpu.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC")
MINUTES = 5


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
    name = f"passes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
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
            loaded.kerbs_totals.restype = loaded.kerbs_gradient.restype = None
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
    logger.info("compiling the KerBS passes for this CPU, once")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        half, whole = Path(folder) / "passes.o", Path(folder) / path.name
        # linked without -fopenmp: torch has loaded an OpenMP library, and a second one would fight for the cores
        for command in (
            [cxx, *FLAGS, "-c", str(SOURCE), "-o", str(half)],
            [cxx, "-shared", str(half), "-o", str(whole)],
        ):
            run(command)
        whole.chmod(0o700)  # whatever the umask
        os.replace(whole, path)


def is_native(like: Tensor) -> bool:
    """Whether tensors such as this one go through the compiled passes."""
    return like.device.type == "cpu" and like.dtype == torch.float32 and native().library is not None


def _at(x: Optional[Tensor]) -> Optional[ctypes.c_void_p]:
    if x is None:
        return None
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


class NativePasses:
    """The compiled passes: both sweep over D alone, and compute the kernel twice rather than keep it."""

    def __init__(self, slots: Tensor, columns: Optional[Columns], kernel: str, like: Tensor) -> None:
        library = native().library
        assert library is not None
        self.library, self.slots, self.kernel = library, slots, KERNELS.index(kernel)
        self.sums = like.new_zeros(3, len(like))
        self.columns = [] if columns is None else [column.contiguous() for column in columns]
        pointers = [column.data_ptr() for column in self.columns] or [0] * len(Columns._fields)
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.lookup: Optional[tuple[Tensor, Tensor]] = None

    def _shape(self, D: Tensor) -> tuple[Any, ...]:
        return _at(D), ctypes.c_int64(D.size(0)), ctypes.c_int64(D.size(1)), self.pointers

    def _words(self) -> tuple[Tensor, Tensor]:
        """(slots (k, V), S for none; the word of each sense (S,)), as 32-bit integers."""
        if self.lookup is None:
            V, most = self.slots.shape
            slots = self.slots.t().to(torch.int32).contiguous()
            slots[slots < 0] = self.sums.size(1)
            word_of = torch.zeros(self.sums.size(1) + 1, dtype=torch.int32)  # empty slots, −1, go to the end
            word_of[self.slots.flatten()] = torch.arange(V, dtype=torch.int32).repeat_interleave(most)
            self.lookup = slots, word_of
        return self.lookup

    def totals(self, D: Tensor, rows: Rows, words: bool) -> Totals:
        """First pass."""
        (n, _), (V, most) = D.shape, self.slots.shape
        length, inverse = rows.length.contiguous(), rows.inverse.contiguous()
        found = D.new_empty(n, 5)
        slots, word = (self._words()[0], D.new_empty(n, V)) if words else (None, None)
        sizes = ctypes.c_int64(V), ctypes.c_int64(most)
        self.library.kerbs_totals(
            self.kernel, *self._shape(D), _at(length), _at(inverse), _at(found), _at(slots), *sizes, _at(word)
        )
        top, total, mean, *of_words = found.split(1, 1)
        return Totals(top, total, mean, word, *of_words) if words else Totals(top, total, mean)

    def gradient(self, D: Tensor, rows: Rows, totals: Totals, factor: Tensor, less: Tensor) -> Tensor:
        """Second pass."""
        per_row = [x.contiguous() for x in (rows.length, rows.inverse, totals.top, factor)]
        word_of = None if totals.word is None else self._words()[1]
        less = less.contiguous()
        of_words = _at(totals.word), ctypes.c_int64(len(self.slots)), _at(word_of), _at(less)
        self.library.kerbs_gradient(self.kernel, *self._shape(D), *map(_at, per_row), *of_words, _at(self.sums))
        return D
