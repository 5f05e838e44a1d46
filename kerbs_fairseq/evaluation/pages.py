"""Tables in pages: what stands between two markers is made from the JSON files of results.

``<!-- results: NAME -->`` is followed by the table of docs/results/NAME.json, ``<!-- results -->`` by a summary of all;
``<!-- end of results -->`` ends both.
"""

import re
from pathlib import Path
from typing import Any

from kerbs_fairseq.evaluation.table import markdown_of, summary
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_text
from kerbs_fairseq.runs.files import write as write_file

MARKED = re.compile(r"(<!-- results(?:: (\S+))? -->\n)(.*?)(<!-- end of results -->)", re.S)
OPENING = re.compile(r"<!-- results(?:: \S+)? -->")
NOTHING = "(not run yet)\n"


def filled(page: str, results: dict[str, dict[str, Any]]) -> str:
    """The text of a page with all its tables as they should be."""

    def table(match: "re.Match[str]") -> str:
        name = match[2]
        if name is None:
            content = summary(list(results.values())) if results else NOTHING
        else:
            content = markdown_of(results[name]) if name in results else NOTHING
        return f"{match[1]}\n{content}\n{match[4]}"

    return MARKED.sub(table, page)


def fill(path: Path, results: dict[str, dict[str, Any]], write: bool) -> bool:
    """Whether a page is not as it should be; with ``write`` it is from then on."""
    before = read_text(path)
    if len(OPENING.findall(before)) != len(MARKED.findall(before)):
        raise UserError(f"{path}: a <!-- results --> without its <!-- end of results -->")
    after = filled(before, results)
    if write and after != before:
        write_file(path, after)
    return after != before
