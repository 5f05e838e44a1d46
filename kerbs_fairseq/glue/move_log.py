"""``--kerbs-move-log FILE``: every move of a sense as a row of a table.

A run that was interrupted and resumed leaves the same table as one that was not.
"""

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kerbs_fairseq.glue.refusal import refuse


class Row(NamedTuple):
    """A move: what the statistics said before it."""

    update: int
    sense: int
    from_word: str
    to_word: str
    usage: float
    log_accuracy: float


class MoveLog:
    """A file of tab-separated values, with a line for the names of the columns."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def begin(self, update: int) -> None:
        """At the start of a process that goes on from ``update`` updates: what was written of later ones goes."""
        try:
            kept = self._rows_until(update)
            whole = "".join(self._line(row) for row in (Row._fields, *kept))
            beside = self.path.with_name(self.path.name + ".new")
            beside.write_text(whole, encoding="utf-8")
            os.replace(beside, self.path)
        except OSError as error:
            refuse(f"--kerbs-move-log {self.path} cannot be written: {error.strerror or error}")
        except (ValueError, csv.Error):
            refuse(f"--kerbs-move-log {self.path} is there already and is no table of moves: choose another file")

    def _rows_until(self, update: int) -> list[list[str]]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
        rows = list(csv.reader(whole.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
        if (text and not rows) or (rows and rows[0] != list(Row._fields)):
            raise ValueError("no table of moves")
        if len(rows) > 1 and update == 0:
            refuse(f"--kerbs-move-log {self.path} has the moves of another run: choose another file, or remove it")
        return [row for row in rows[1:] if len(row) == len(Row._fields) and int(row[0]) <= update]

    @staticmethod
    def _line(row: Iterable[Any]) -> str:
        return "\t".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in row) + "\n"

    def add(self, rows: Iterable[Row]) -> None:
        """Append the moves of an event."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(self._line(row) for row in rows)
        except OSError as error:
            refuse(f"--kerbs-move-log {self.path} cannot be written: {error.strerror or error}")
