"""``kerbs-doctor``: show what is installed, which patches of fairseq are active and why, and what is wrong.

Exit code 0 if all is well, 1 if not.
"""

import functools
import importlib
import os
import platform
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import kerbs_fairseq
from kerbs_fairseq import plugin, requirements
from kerbs_fairseq.plugin import fairseq_patches
from kerbs_fairseq.runs import process as commands
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import console

NAME = "kerbs-doctor"
OTHER_PACKAGES = ("numpy", "rich", "sacrebleu", "sentencepiece", "regex", "bitarray", "tqdm")
COMMANDS = ("preprocess", "train", "generate", "interactive", "eval-lm", "validate", "hydra-train")
WIDTH = 100
BACKEND = "KERBS_BACKEND"


def versions() -> Iterator[str]:
    """Yield a line for Python and for each package."""
    yield f"{'python':<20}{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield f"{'kerbs-fairseq':<20}{kerbs_fairseq.__version__}"
    for need in requirements.NEEDS:
        installed = requirements.version_of(need.package) or "missing"
        yield f"{need.package:<20}{installed:<16}{need.range()}"
    for package in OTHER_PACKAGES:
        yield f"{package:<20}{requirements.version_of(package) or 'missing'}"


def patches() -> Iterator[str]:
    """Yield the lines of every patch, with its state and its reason."""
    boot = "active" if "_kerbs_fairseq_boot" in sys.modules and sys.version_info >= (3, 11) else "off"
    reason = "Python >= 3.11 refuses the dataclasses of fairseq's configuration: 'import fairseq' fails with ValueError"
    yield from entry("boot shim", boot, reason)
    for patch in fairseq_patches.PATCHES:
        if patch.name in plugin.applied:
            state = "active"
        elif patch.name in fairseq_patches.skipped():
            state = f"left out by {fairseq_patches.SKIP_VARIABLE}"
        else:
            state = "off: the plugin is not active" if plugin.fault else "off: not needed here"
        yield from entry(patch.name, state, patch.reason)


def entry(name: str, state: str, reason: str) -> Iterator[str]:
    """Yield the lines of a patch: name and state on one line, the reason wrapped below."""
    yield f"{name:<20}{state}"
    indent = " " * 22
    yield from textwrap.wrap(reason, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


class Trial(NamedTuple):
    """The result of loading the compiled library."""

    reason: str
    said: list[str]  # warnings, such as about settings that are ignored
    died: bool


@functools.cache
def trial() -> Trial:
    """Load the compiled library in a separate process: a broken one can end the process that loads it."""
    # by path, not by module name: that would import the package too
    program = Path(kerbs_fairseq.__file__).parent / "functional" / "backends" / "build.py"
    done = commands.captured([sys.executable, str(program)])
    said = done.stderr.strip().splitlines()
    if done.returncode == 0:
        return Trial(done.stdout.strip(), said, False)
    if done.returncode < 0:
        why = f"the trial was ended by {signal.Signals(-done.returncode).name}"
    else:
        why = f"the trial failed: {said[-1] if said else done.returncode}"
    return Trial(f"unknown, {why}", said, True)


def devices() -> Iterator[str]:
    """Yield the devices that torch can compute on."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken torch is what this command is for
        yield f"torch cannot be imported: {type(error).__name__}: {error}"
        return
    yield f"cpu, {torch.get_num_threads()} threads; KerBS on it: {trial().reason}"
    yield from (textwrap.shorten(line, WIDTH) for line in trial().said)
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(i).total_memory / 2**30
            yield f"cuda:{i}, {torch.cuda.get_device_name(i)}, {memory:.0f} GiB; KerBS on it: {on_gpu(i)}"
    else:
        yield "no CUDA device: give --cpu or train on the CPU as it is; --fp16 and --bf16 need a GPU"
        yield f"the Triton kernels for a GPU: {triton()[1]}"
    asked = os.environ.get(BACKEND)
    if asked:
        yield f"{BACKEND}={asked} asks for one backend, whatever the device"


def triton(device: Any = None) -> tuple[bool, str]:
    """Return whether the Triton kernels run on a ``torch.device``, and the reason."""
    try:
        backend = importlib.import_module("kerbs_fairseq.functional.backends.triton")
    except requirements.NotSupported as error:  # torch is too old
        return False, str(error)
    able, reason = backend.available(device)
    return able, reason


def on_gpu(number: int) -> str:
    """Return which backend a GPU gets, and why."""
    able, reason = triton(importlib.import_module("torch").device("cuda", number))
    return f"Triton kernels, {reason}" if able else f"plain torch, which is slower: {reason}"


def problems() -> Iterator[str]:
    """Yield each problem, with what to do about it."""
    faults = requirements.faults()
    yield from faults
    if plugin.fault and plugin.fault not in faults:
        yield plugin.fault
    for package in OTHER_PACKAGES:
        if requirements.version_of(package) is None:
            yield f"{package} is not installed: pip install {package}"
    if requirements.version_of("fairseq") is not None:
        missing = [f"fairseq-{name}" for name in COMMANDS if commands.find(f"fairseq-{name}") is None]
        if missing:
            yield f"commands not found: {', '.join(missing)}: {requirements.REINSTALL}"
    if plugin.fault is None:
        for extension in ("fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast"):
            try:
                importlib.import_module(extension)
            except ImportError as error:
                yield (
                    f"{extension}, a compiled part of fairseq, does not load ({error}): with a C++ compiler installed, "
                    "pip install --no-cache-dir --force-reinstall --no-deps fairseq==0.12.2"
                )
        if trial().died:
            yield f"KerBS on this CPU: {trial().reason}; remove the cache of compiled kernels, or set KERBS_NATIVE=0"
        names = importlib.import_module("kerbs_fairseq.functional.backends.dispatch").BACKENDS
        asked = os.environ.get(BACKEND, "")
        if asked and asked not in names:
            yield f"{BACKEND}={asked}: there are {', '.join(names)}; unset it, or name one of them"
        if fairseq_patches.skipped():
            yield f"patches are left out: unset {fairseq_patches.SKIP_VARIABLE} to apply them"


def report() -> tuple[str, int]:
    """Return the whole report and the number of problems."""
    faults = list(problems())
    sections = {
        "Versions (and what is supported)": versions(),
        "Patches of fairseq": patches(),
        "Devices": devices(),
        "Use": iter([f"fairseq-train DATA --user-dir {commands.user_dir()} ..."]),
        f"{len(faults)} problem{'s' * (len(faults) != 1)}" if faults else "No problems found.": iter(faults),
    }
    blocks = ["\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in sections.items()]
    return "\n\n".join(blocks), len(faults)


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    parser = Parser(
        prog=NAME,
        description="Show versions, the patches of fairseq and why, devices, and what is wrong. Exit code 0 or 1.",
    )
    with console(NAME):
        parser.parse_args(argv)
        text, count = report()
        print(text)
        sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
