"""A user's mistake, told in one line."""

from typing import NoReturn

from kerbs_fairseq.runs import errors


def refuse(message: str) -> NoReturn:
    """One line where a fairseq command is the main program, a UserError in any other program."""
    errors.refuse(f"kerbs_fairseq: {message}")
