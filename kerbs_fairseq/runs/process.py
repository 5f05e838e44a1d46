"""Run commands: find those of fairseq beside this Python, read their output, and report failures clearly."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional, TextIO

from kerbs_fairseq.runs.errors import UserError

LAST_LINES = 12
Process = subprocess.Popen[str]


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


def captured(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command; return its exit code, its output and its errors."""
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def logged(
    command: Sequence[str],
    log: Path,
    watch: Optional[Callable[[str], None]] = None,
    environment: Optional[dict[str, str]] = None,
    running: Optional[set[Process]] = None,
    append: bool = False,
) -> tuple[int, list[str]]:
    """Run a command with its output in the file ``log``; return its exit code and its last lines.

    ``watch`` gets each line. An exception, above all by Ctrl-C, ends the command: a training must not go on in the
    background. With ``running`` the command is in that set while it runs, and in a session of its own, so that
    :func:`stop` ends its child processes too.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a" if append else "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, encoding="utf-8",
            errors="replace", start_new_session=running is not None,
        )  # fmt: skip
        try:
            if running is not None:
                running.add(process)
            last = follow(process, file, watch)
        except BaseException:
            process.kill() if running is None else stop(process)
            raise
        finally:
            process.wait()
            if running is not None:
                running.discard(process)
    return process.returncode, last


def stop(process: Process) -> None:
    """End a process that has a session of its own, and its child processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def follow(process: Process, log: TextIO, watch: Optional[Callable[[str], None]] = None) -> list[str]:
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
    code, last = logged([program, *command[1:]], log, watch, environment)
    if code != 0:
        end = "".join(last)
        raise CommandFailed(f"{command[0]} failed ({code}); full log: {log}. Last lines:\n{end}")
