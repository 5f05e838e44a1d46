"""Ctrl-C while one of our commands is still importing: one line, at once. Imports next to nothing itself."""

import os
import signal
import sys


def end_at_once(number: int, _: object) -> None:
    """End this process by the signal; an exception could be lost in the middle of somebody's import."""
    name = os.path.basename(sys.argv[0])
    os.write(2, f"{name}: interrupted\n".encode())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def watch() -> None:
    """From here on, until the command begins its work."""
    name = os.path.basename(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if name.startswith("kerbs-") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
