"""Running fairseq's console commands: found beside this Python, watched line by line, failing with one clear line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, Optional

from kerbs_fairseq.runs.errors import UserError

LAST_LINES = 12


class CommandFailed(UserError):
    """A command ended with an error; the text says which, the end of what it printed, and where the rest is."""


def find(command: str) -> Optional[str]:
    """The path of a console command of this Python's environment, or else of the PATH; None if there is none."""
    beside = Path(sys.executable).with_name(command)
    return str(beside) if beside.is_file() else shutil.which(command)


def user_dir() -> str:
    """What to give to --user-dir in this folder: the plain name wherever fairseq finds us by it, else the path."""
    package = Path(__file__).resolve().parent.parent
    here = Path.cwd() / package.name
    beside_fairseq = (package.parent / "fairseq").is_dir()
    by_name = here.resolve() == package if here.exists() else beside_fairseq
    return package.name if by_name else str(package)


def run(
    command: list[str], log: Path, watch: Optional[Callable[[str], None]] = None, threads: Optional[int] = None
) -> None:
    """Run ``command`` on ``threads`` cores, send all that it prints to the file ``log`` and, by lines, to ``watch``."""
    program = find(command[0])
    if program is None:
        raise CommandFailed(f"{command[0]} is not installed: run kerbs-doctor")
    log.parent.mkdir(parents=True, exist_ok=True)
    last: list[str] = []
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                last = [*last[1 - LAST_LINES :], line]
                if watch is not None:
                    watch(line)
        except BaseException:  # above all Ctrl-C: a training run must not go on unseen
            process.kill()
            raise
        finally:
            process.wait()
    if process.returncode != 0:
        raise CommandFailed(f"{command[0]} failed ({process.returncode}), all it said is in {log}:\n{''.join(last)}")
