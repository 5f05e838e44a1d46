"""Run fairseq's console commands: find them beside this Python, read their output, and report failures clearly."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional, TextIO

from kerbs_fairseq.runs.errors import UserError

LAST_LINES = 12


class CommandFailed(UserError):
    """A command ended with an error; the text has its name, the end of its output, and where the rest is."""


def find(command: str) -> Optional[str]:
    """Return the path of a console command in this Python's environment, or else on the PATH; None if there is none."""
    beside = Path(sys.executable).with_name(command)
    return str(beside) if beside.is_file() else shutil.which(command)


def user_dir() -> str:
    """Return the value for --user-dir in this folder: the package name if fairseq finds it by that, else the path."""
    package = Path(__file__).resolve().parent.parent
    here = Path.cwd() / package.name
    beside_fairseq = (package.parent / "fairseq").is_dir()
    by_name = here.resolve() == package if here.exists() else beside_fairseq
    return package.name if by_name else str(package)


def start(
    command: Sequence[str], environment: Optional[dict[str, str]] = None, new_session: bool = False
) -> "subprocess.Popen[str]":
    """Start a command; :func:`follow` reads its output."""
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, encoding="utf-8",
        errors="replace", start_new_session=new_session,
    )  # fmt: skip


def follow(process: "subprocess.Popen[str]", log: TextIO, watch: Optional[Callable[[str], None]] = None) -> list[str]:
    """Write the output of a process to the open file ``log`` and pass each line to ``watch``; return the last lines."""
    assert process.stdout is not None
    last: list[str] = []
    for line in process.stdout:
        log.write(line)
        log.flush()
        last = [*last[1 - LAST_LINES :], line]
        if watch is not None:
            watch(line)
    return last


def run(
    command: list[str], log: Path, watch: Optional[Callable[[str], None]] = None, threads: Optional[int] = None
) -> None:
    """Run ``command`` with ``threads`` threads, write its output to the file ``log``, pass lines to ``watch``."""
    program = find(command[0])
    if program is None:
        raise CommandFailed(f"{command[0]} is not installed: run kerbs-doctor")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        process = start([program, *command[1:]], environment)
        try:
            last = follow(process, file, watch)
        except BaseException:  # above all Ctrl-C: a training must not go on in the background
            process.kill()
            raise
        finally:
            process.wait()
    if process.returncode != 0:
        end = "".join(last)
        raise CommandFailed(f"{command[0]} failed ({process.returncode}); full log: {log}. Last lines:\n{end}")
