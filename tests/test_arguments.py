"""The argument parser of the console commands."""

import importlib
import re
from typing import Any

import pytest
from commands import PACKAGE

from kerbs_fairseq.cli import convert, export
from kerbs_fairseq.evaluation import sweep

COMMANDS = re.findall(r"(kerbs-[\w-]+) = ([\w.]+):main", (PACKAGE.parent / "setup.py").read_text())


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (export.main, "model.pt -o model.ts --data data --beam=--"),
        (convert.main, "softmax.pt kerbs.pt --data data --kerbs-senses=--"),
        (sweep.main, "recipes/lm_1b --out out --jobs=--"),
    ],
)
def test_an_option_whose_value_is_two_dashes_is_refused(
    main: Any, arguments: str, capsys: pytest.CaptureFixture
) -> None:
    """Up to Python 3.12 argparse makes it an empty list, which later fails with a traceback."""
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    option = arguments.rsplit(maxsplit=1)[-1].removesuffix("=--")
    assert f"argument {option}: expected one argument" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "module"), COMMANDS)
def test_the_help_is_plain_text(name: str, module: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {name} ")
    assert "``" not in shown
