"""A user's mistake, told in one line."""

from typing import NoReturn

from kerbs_fairseq import requirements


def refuse(message: str) -> NoReturn:
    """One line where a fairseq command is running, a ValueError in a program."""
    requirements.stop(message, ValueError)
