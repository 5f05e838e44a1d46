"""The exception for errors that a user can correct, and console commands that end with one line."""

import contextlib
import io
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, TextIO, Union

INTERRUPTED, CLOSED_PIPE = 130, 141  # exit codes, as shells have them: 128 + the number of the signal
LONGEST_REASON = 300  # characters
BIDIRECTIONAL = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


class UserError(ValueError):
    """A wrong option, or a file that is not what it should be; the text says what to do."""


def command_name() -> str:
    """Return the console command that is the main program, such as fairseq-train; "" in other programs."""
    path = Path(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    if path.parent.name == "fairseq_cli":  # python -m fairseq_cli.train
        return f"fairseq-{path.stem}"
    return path.name if re.fullmatch(r"(fairseq|kerbs)-[a-z-]+", path.name) else ""


def refuse(sentence: str, error: type[UserError] = UserError) -> NoReturn:
    """Exit with ``sentence`` if a console command of fairseq is the main program; otherwise raise it as an ``error``.

    fairseq's commands would show an exception with a traceback, or replace it by a message of their own.
    """
    if command_name().startswith("fairseq-"):
        raise SystemExit(sentence)
    raise error(sentence)


def reason(error: BaseException) -> str:
    """Return the message of an exception in one line of limited length."""
    text = " ".join((getattr(error, "strerror", None) or str(error)).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} …"


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Convert the exceptions of other libraries into a UserError: ``what``, and the reason."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason(error)}") from None


def visible(text: object) -> str:
    """Return ``text`` with escapes in place of characters that control a terminal or the direction of text."""
    return "".join(
        c.encode("unicode_escape").decode()
        if c in BIDIRECTIONAL or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        else c
        for c in str(text)
    )


@contextlib.contextmanager
def console(name: str) -> Iterator[None]:
    """Run the console command ``name`` within this context: errors end it with one line and an exit code.

    These are UserErrors, Ctrl-C, a pipe that was closed (``| head``), a full disk behind the standard output, too
    little memory. Characters that a terminal cannot show are printed as escapes.
    """
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed before the start
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if isinstance(getattr(sys, stream), io.TextIOWrapper):
            getattr(sys, stream).reconfigure(errors="backslashreplace")
    handler, interrupts = signal.getsignal(signal.SIGINT), watch_interrupts()
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # fairseq's data sets fail to close damaged files
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        code = ending(name, KeyboardInterrupt() if interrupts else error)
        if code is None:
            raise
        raise SystemExit(code) from None
    finally:
        if not command_name():  # else they stay until the process ends
            sys.unraisablehook = hook
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, handler)


def ending(name: str, error: BaseException) -> Union[int, str, None]:
    """Return the exit code or the line that an exception ends a command with; None for a bug of ours."""
    if isinstance(error, UserError):
        return f"{name}: {lines(error)}"
    if isinstance(error, KeyboardInterrupt):
        say(f"{name}: interrupted")
        return INTERRUPTED
    if isinstance(error, OSError):
        discard(sys.stdout)
        where = "cannot write to the standard output" if error.filename is None else visible(error.filename)
        return CLOSED_PIPE if isinstance(error, BrokenPipeError) else f"{name}: {where}: {reason(error)}"
    return f"{name}: not enough memory" if isinstance(error, MemoryError) else None


def watch_interrupts() -> list[int]:
    """Let Ctrl-C raise a KeyboardInterrupt, and return a list that records it: imports may replace the exception."""
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    with contextlib.suppress(ValueError):  # not the main thread
        if callable(signal.getsignal(signal.SIGINT)):  # else it is to be ignored
            signal.signal(signal.SIGINT, interrupt)
    return interrupts


def lines(problem: UserError) -> str:
    """Return the text of ``problem`` with control characters escaped, except line ends."""
    return "\n".join(map(visible, str(problem).split("\n")))


def say(line: str) -> None:
    """Print ``line`` to the standard error; ignore a closed stream."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)


def discard(stream: TextIO) -> None:
    """Discard what is still in a stream's buffer: Python would try to write it again when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
