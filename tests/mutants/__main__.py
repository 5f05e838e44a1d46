"""Seeded faults: each is put into a copy of the project, alone, and some test that is named for it must fail.

``python tests/mutants`` runs all of faults.py and prints a table; it ends with 1 if a fault was not caught, or if its
text is no longer in the file. ``--only word`` takes the faults whose area, file or name has the word; ``--commit REV``
runs them in that commit instead of the working tree.
"""

import argparse
import atexit
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest; others say that no test was run


class Result(NamedTuple):
    """How the tests ended, which failed, and the CPU seconds that it took."""

    code: int
    failed: list[str]
    seconds: float
    output: str


def main() -> None:
    """Run the faults and print a table."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose area, file or name has this word")
    parser.add_argument("--commit", help="put the faults into this commit instead of the working tree")
    parser.add_argument("--faults", type=Path, default=Path(__file__).with_name("faults.py"), help="another list")
    parser.add_argument("--list", action="store_true", help="say which texts are found, and run nothing")
    args = parser.parse_args()
    chosen = [
        f
        for f in runpy.run_path(str(args.faults))["FAULTS"]
        if args.only.lower() in f"{f.area} {f.file} {f.name}".lower()
    ]
    with tempfile.TemporaryDirectory(prefix="kerbs-mutants-") as scratch:
        copy = Path(scratch) / "project"
        copy_of_project(copy, args.commit)
        present = [f for f in chosen if f.count(copy) == 1]
        for fault in (f for f in chosen if f not in present):
            print(f"{fault.file}: the text of {fault.name!r} is there {fault.count(copy)} times, not once")
        if args.list:
            sys.exit(len(present) < len(chosen))
        preload()
        sound = run_tests(copy, list(dict.fromkeys(test for fault in present for test in fault.tests.split())), [])
        for test in sound.failed:
            print(f"{test} fails without any fault, and is left out")
        print("\n| area | file | fault | caught by | seconds |\n|---|---|---|---|---|", flush=True)
        caught = sum(is_caught(fault, copy, sound.failed) for fault in present)
    print(f"\n{caught} of {len(chosen)} faults caught; the tests without a fault took {sound.seconds:.0f} s")
    sys.exit(caught < len(chosen) or bool(sound.failed))


def is_caught(fault: Any, copy: Path, broken: list[str]) -> bool:
    """Put the fault in, run its tests, take it out again; print a row of the table."""
    path = fault.path(copy)
    sound = path.read_text(encoding="utf-8")
    write(path, sound.replace(fault.text, fault.replacement))
    result = run_tests(copy, fault.tests.split(), ["-x", *(f"--deselect=tests/{test}" for test in broken)])
    write(path, sound)
    by = {PASSED: "**nothing**", FAILED: f"`{' '.join(result.failed)}`"}.get(
        result.code, f"**exit code {result.code}**"
    )
    print(f"| {fault.area} | {path.name} | {fault.name} | {by} | {result.seconds:.0f} |", flush=True)
    if result.code not in (PASSED, FAILED):
        print(result.output)
    return result.code == FAILED


def write(path: Path, text: str) -> None:
    """Change a file; Python would not compile it again if its size and its time, in seconds, stay the same."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def copy_of_project(to: Path, commit: str | None) -> None:
    """What git knows of the working tree, or a commit."""
    to.mkdir()
    if commit:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(to)], input=archive, check=True)
        return
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def preload() -> None:
    """Import what the tests import, but for the project itself: each run of them is a fork of this process."""
    import torch._dynamo  # noqa: F401


def run_tests(copy: Path, tests: list[str], options: list[str]) -> Result:
    """Run tests in a copy of the project."""
    log = copy.parent / "log"
    before = sum(os.times()[2:4])
    process = os.fork()
    if not process:
        run_here(copy, [*(f"tests/{test}" for test in tests), *options], log)
    status = os.waitpid(process, 0)[1]
    output = log.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+?::.+?)(?: - .*)?$", output, re.M)
    return Result(os.waitstatus_to_exitcode(status), failed, sum(os.times()[2:4]) - before, output)


def run_here(copy: Path, arguments: list[str], log: Path) -> None:
    """In a process of its own: run pytest, and end."""
    atexit._clear()  # what this process would do at its end: remove the copy
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(copy)
    sys.path[0] = str(copy)
    os.environ |= {"PYTHONPATH": str(copy), "KERBS_CACHE": str(copy.parent / "cache"), "OMP_NUM_THREADS": "1"}
    import pytest
    from hypothesis import Phase, settings

    # the first example that fails is enough: no search for a smaller one
    settings.register_profile("mutants", deadline=None, database=None, phases=(Phase.explicit, Phase.generate))
    options = ["-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
    options += ["--hypothesis-seed=1", "--override-ini=addopts="]  # those of the project leave tests out
    code = int(pytest.main([*options, *arguments]))
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
