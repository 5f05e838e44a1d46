"""``--kerbs-move-log FILE``: every move of a sense as a row of a table.

A run that was interrupted and resumed leaves the same table as one that was not.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from kerbs_fairseq.plugin.refusal import refuse


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
            rows = self._rows()
        except OSError as error:
            self._refuse_to_write(error)
        except ValueError:
            refuse(f"--kerbs-move-log {self.path} is there already and is no table of moves: choose another file")
        if rows and update == 0:
            refuse(f"--kerbs-move-log {self.path} has the moves of another run: choose another file, or remove it")
        kept = [row for row in rows if int(row[0]) <= update]
        beside = self.path.with_name(self.path.name + ".new")
        try:
            beside.write_text("".join(self._line(row) for row in (Row._fields, *kept)), encoding="utf-8")
            os.replace(beside, self.path)
        except OSError as error:
            self._refuse_to_write(error)

    def _rows(self) -> list[list[str]]:
        """What is there; a ValueError if that is not a table of moves. Half a line, of a killed run, is left out."""
        if not self.path.exists():
            return []
        head, *lines = self.path.read_text(encoding="utf-8").split("\n")
        if head != "\t".join(Row._fields) or not lines:
            raise ValueError("no table of moves")
        rows = [line.split("\t") for line in lines[:-1]]
        if not all(len(row) == len(Row._fields) and row[0].isdigit() for row in rows):
            raise ValueError("no table of moves")
        return rows

    def _refuse_to_write(self, error: OSError) -> NoReturn:
        refuse(f"--kerbs-move-log {self.path} cannot be written: {error.strerror or error}")

    @staticmethod
    def _line(row: Iterable[Any]) -> str:
        return "\t".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in row) + "\n"

    def add(self, rows: Iterable[Row]) -> None:
        """Append the moves of an event."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(self._line(row) for row in rows)
        except OSError as error:
            self._refuse_to_write(error)
