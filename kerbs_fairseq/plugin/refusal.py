"""Errors that the user can correct, reported in one line."""

from typing import NoReturn

from kerbs_fairseq.runs import errors


def refuse(message: str) -> NoReturn:
    """Exit with ``message`` if a fairseq command is the main program; raise a UserError in any other program."""
    errors.refuse(f"kerbs_fairseq: {message}")
