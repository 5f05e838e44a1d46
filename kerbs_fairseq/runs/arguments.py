"""The argument parser of the console commands."""

import argparse
from typing import Any


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses ``--option=--``, whose value is an empty list up to Python 3.12."""

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)
