"""``--kerbs-move-log FILE``: every move of a sense as a row of a table.

A run that was interrupted and resumed writes the same table as one that was not. A failed write does not stop the
training: it is reported once, and repeated at the next event.
"""

import itertools
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs import files
from kerbs_fairseq.runs.errors import UserError, visible
from kerbs_fairseq.runs.logs import HEADER, move_rows
from kerbs_fairseq.runs.logs import Move as Row

__all__ = ["MoveLog", "Row"]
logger = logging.getLogger(__name__)


class MoveLog:
    """A file of tab-separated values with a header line."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.size = 0  # bytes of the file that are whole lines of this run
        self.waiting = b""  # lines that could not be written yet
        self.warned = False

    def begin(self, update: int) -> None:
        """Begin the table in a process that resumes after ``update`` updates; rows of later updates are removed."""
        rows = self._rows()
        if rows and update == 0:
            self._put_aside()
        kept = (row for row in rows if int(row[0]) <= update)
        table = b"".join(map(self._line, [[HEADER], *kept]))
        try:
            if rows and update and self.path.read_bytes().startswith(table):
                os.truncate(self.path, len(table))  # which works on a full disk too
            else:
                files.write(self.path, table)
        except (UserError, OSError) as problem:
            refuse(f"--kerbs-move-log: {problem}")
        self.size, self.waiting = len(table), b""

    def _put_aside(self) -> None:
        """Rename a table of another run, or of this one if it was killed before its first checkpoint, to keep it."""
        real = files.destination(self.path)
        aside = next(path for n in itertools.count(1) if not (path := real.with_name(f"{real.name}.{n}")).exists())
        try:
            real.rename(aside)
        except OSError as error:
            refuse(
                f"--kerbs-move-log {self.path} has the moves of another run, and cannot be renamed: {error.strerror}"
            )
        logger.warning(f"--kerbs-move-log {self.path} had moves of a training that does not go on: they are in {aside}")

    def _rows(self) -> list[list[str]]:
        """Return the rows that the file has already."""
        try:
            real = files.destination(self.path)
            return move_rows(files.read_text(real)) if real.exists() else []
        except UserError as problem:
            refuse(f"--kerbs-move-log: {problem}")
        except ValueError:
            refuse(f"--kerbs-move-log {self.path} exists and is not a table of moves: choose another file")

    @staticmethod
    def _line(row: Iterable[Any]) -> bytes:
        cells = (f"{x:.6g}" if isinstance(x, float) else str(x) for x in row)
        return ("\t".join(cells) + "\n").encode("utf-8", errors="replace")

    def add(self, rows: Iterable[Row]) -> None:
        """Append the moves of an event."""
        self.waiting += b"".join(
            self._line(row._replace(from_word=visible(row.from_word), to_word=visible(row.to_word))) for row in rows
        )
        try:
            with self.path.open("r+b") as file:
                if file.seek(0, os.SEEK_END) < self.size:
                    raise OSError("another program has made it shorter")
                file.truncate(self.size)  # a failed write may have left part of a line
                file.seek(self.size)
                file.write(self.waiting)
        except OSError as error:
            if not self.warned:
                self.warned = True
                logger.warning(
                    f"--kerbs-move-log {self.path} cannot be written: {error.strerror or error}. Training goes on; "
                    "moves are added to the table when it can be written again"
                )
            return
        self.size, self.waiting = self.size + len(self.waiting), b""
