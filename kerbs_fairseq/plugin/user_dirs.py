"""Support for several ``--user-dir``: fairseq takes the last one that is given and ignores the others."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs.errors import command_name, reason


def given(arguments: list[str]) -> Iterator[str]:
    """Yield every ``--user-dir`` of a command line."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        if argument == "--user-dir":
            yield following
        elif argument.startswith("--user-dir="):
            yield argument.partition("=")[2]


def import_others() -> None:
    """Import the other ``--user-dir`` folders too, if one of fairseq's commands imports this package."""
    if not command_name().startswith("fairseq-"):
        return
    from fairseq import utils

    ours = Path(__file__).resolve().parent.parent
    for folder in given(sys.argv):
        if not folder or Path(folder).name == ours.name:
            continue
        try:
            utils.import_user_module(Namespace(user_dir=folder))
        except (ImportError, FileNotFoundError) as error:
            refuse(f"--user-dir {folder} cannot be imported: {reason(error)}")
