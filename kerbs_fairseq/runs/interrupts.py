"""Handle Ctrl-C and packages that are missing or too old while one of our commands is still importing.

Imports little itself.
"""

import os
import signal
import sys
from types import TracebackType
from typing import Optional


def end_at_once(number: int, _: object) -> None:
    """End this process by the signal; an exception could be lost in the middle of an import."""
    name = os.path.basename(sys.argv[0])
    os.write(2, f"{name}: interrupted\n".encode())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def watch() -> None:
    """Install the handlers if one of our commands is the main program."""
    name = os.path.basename(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if name.startswith("kerbs-") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
    if name.startswith("kerbs-"):
        sys.excepthook = say_what_is_wrong


def say_what_is_wrong(kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Print one line for a UserError, or if a package is missing that one of our extras installs; else the traceback.

    A UserError during an import says which version of a package is needed.
    """
    from importlib import metadata

    from kerbs_fairseq.runs import errors

    name = os.path.basename(sys.argv[0])
    if isinstance(error, errors.UserError):
        errors.say(f"{name}: {errors.lines(error)}")
        return
    missing = str(getattr(error, "name", "")).partition(".")[0] if kind is ModuleNotFoundError else ""
    lines = (metadata.requires("kerbs-fairseq") or []) if missing else []
    fitting = [line for line in lines if line.startswith(missing) and "extra == " in line]
    extras = [line.split("extra == ")[1].strip("'\" ") for line in fitting]
    if not extras:
        sys.__excepthook__(kind, error, trace)
        return
    print(f'{name}: {missing} is not installed: pip install "kerbs-fairseq[{extras[0]}]"', file=sys.stderr)
