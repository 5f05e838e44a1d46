"""The command lines of the console commands."""

import argparse
from typing import Any


class Parser(argparse.ArgumentParser):
    """argparse's, for which ``--option --`` has no value: up to Python 3.12 it makes an empty list of it."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)
