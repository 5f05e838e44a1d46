"""Commands run by command_server.py behave as in a new interpreter."""

import re
import subprocess
from pathlib import Path

import pytest
from command_client import READ_AT_IMPORT
from commands import ENVIRONMENT, console_commands, launch, start

OURS = [path.name for path in console_commands() if path.name.startswith("kerbs-")]
PROGRAMS = {
    "output": "import sys; print('out', sys.argv); print('err', file=sys.stderr)",
    "input": "import sys; print(sys.stdin.read().upper())",
    "place": "import os, sys; print(os.getcwd(), os.environ['ASKED'], sys.path[0], __name__)",
    "exit code": "import sys; sys.exit(7)",
    "message": "import sys; sys.exit('one line')",
    "nothing wrong": "raise SystemExit",
    "exit functions": "import atexit; atexit.register(print, 'at last'); print('first')",
    "threads": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('later'))).start()",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "unflushed": "import os; os.write(1, b'raw\\n'); print('x' * 100000)",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_fork_behaves_like_a_new_interpreter(tmp_path: Path, program: str) -> None:
    env = {**ENVIRONMENT, "ASKED": "for"}
    fork, fresh = (
        launch(["python", "-c", program, "a b", "c"], fresh=fresh, env=env, cwd=tmp_path, input="given\n")
        for fresh in (False, True)
    )
    assert (fork.returncode, fork.stdout, fork.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_an_error_ends_with_a_traceback() -> None:
    done = launch(["python", "-c", "1 / 0"])
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("\nZeroDivisionError: division by zero\n")


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    program = f"import pathlib, time; time.sleep(2); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    with pytest.raises(TimeoutError):
        launch(["python", "-c", program], timeout=0.5)
    assert launch(["python", "-c", "import time; time.sleep(2.5)"]).returncode == 0
    assert not (tmp_path / "late").exists()


@pytest.mark.e2e
@pytest.mark.parametrize("name", OURS)
def test_every_command_starts_with_its_own_imports(name: str) -> None:
    done = start(f"{name} --help", env={**ENVIRONMENT, READ_AT_IMPORT: ""})  # so the plugin is not there before it
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {name} ")


@pytest.mark.e2e
def test_scripts_start_forks_too() -> None:
    script = "kerbs-inspect no-such-file; echo $?; exec 3>&1; kerbs-inspect --help | head -n 1"
    program = f"import subprocess; subprocess.run(['bash', '-c', {script!r}])"
    done = launch(["python", "-c", program])
    assert re.fullmatch(r"1\nusage: kerbs-inspect .*\n", done.stdout)
    assert done.stderr.startswith("kerbs-inspect: no-such-file ")
    assert "Traceback" not in done.stderr


def test_what_is_read_when_an_interpreter_starts_needs_a_new_one() -> None:
    with pytest.raises(AssertionError, match="read when the interpreter starts"):
        launch(["python", "-c", ""], env={**ENVIRONMENT, "PYTHONPATH": "elsewhere"})
    assert isinstance(launch(["python", "-c", ""], fresh=True), subprocess.CompletedProcess)
