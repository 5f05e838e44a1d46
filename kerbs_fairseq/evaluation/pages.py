"""Tables in Markdown pages: the text between two markers is generated from the JSON files of results.

``<!-- results: NAME -->`` is followed by the table of docs/results/NAME.json without variants of its cells,
``<!-- factors: NAME -->`` by the effect of each setting of KerBS, including variants, and ``<!-- results -->`` by a
summary of all results; ``<!-- end of results -->`` ends each.
"""

import re
from pathlib import Path
from typing import Any

from kerbs_fairseq.evaluation.factors import factors_of
from kerbs_fairseq.evaluation.table import markdown_of, summary
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_text
from kerbs_fairseq.runs.files import write as write_file

OPENING = re.compile(r"<!-- (?:results|results: \S+|factors: \S+) -->")
MARKED = re.compile(r"(<!-- (?:results|(results|factors): (\S+)) -->\n)(.*?)(<!-- end of results -->)", re.S)
NOTHING = "(not run yet)\n"


def without_variants(results: dict[str, Any]) -> dict[str, Any]:
    """Return the results without variants of cells."""
    return {**results, "cells": {name: cell for name, cell in results["cells"].items() if "+" not in name}}


def filled(page: str, results: dict[str, dict[str, Any]]) -> str:
    """Return the text of a page with all its tables replaced by those of ``results``."""

    def table(match: "re.Match[str]") -> str:
        kind, name = match[2], match[3]
        if not results or (kind and name not in results):
            content = NOTHING
        elif kind is None:
            content = summary(list(results.values()))
        else:
            content = factors_of(results[name]) if kind == "factors" else markdown_of(without_variants(results[name]))
        return f"{match[1]}\n{content}\n{match[5]}"

    return MARKED.sub(table, page)


def fill(path: Path, results: dict[str, dict[str, Any]], write: bool) -> bool:
    """Return whether the tables of a page are out of date; update them if ``write``."""
    before = read_text(path)
    if len(OPENING.findall(before)) != len(MARKED.findall(before)):
        raise UserError(f"{path}: a <!-- results --> without its <!-- end of results -->")
    after = filled(before, results)
    if write and after != before:
        write_file(path, after)
    return after != before
