"""The argument parser of the console commands."""

from typing import Any

import pytest

from kerbs_fairseq.cli import convert, export
from kerbs_fairseq.evaluation import sweep


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
