"""Scores of a study, read from filled rating sheets and their key."""

import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kerbs_fairseq.human_evaluation import cells
from kerbs_fairseq.human_evaluation.sheet import FORMAT, KEY, checksum
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_json

SCALE = (0, 1, 2)
SCORE = re.compile(r"([012])(?:[.,]0*)?")
LISTED = 20
FOREIGN = "response ids that are not of this study (is it the key of these sheets?)"
TWICE = "responses that occur twice (two copies of a sheet?)"
MOVED = "texts that belong to another response id (was a column sorted without the others?)"
INVALID = "scores other than 0, 1 and 2"


class Scores(NamedTuple):
    """All scores of a study: ``of[id]`` is the score of the response ``key["responses"][id]``."""

    key: dict[str, Any]
    of: dict[str, int]
    missing: int

    @property
    def systems(self) -> list[str]:
        """All systems, in the order of the command line."""
        return list(self.key["systems"])

    @property
    def raters(self) -> list[int]:
        """The raters who gave any score."""
        return sorted({self.key["responses"][name]["rater"] for name in self.of})

    def by_system(self) -> dict[str, dict[int, dict[int, int]]]:
        """Return {system: {set: {rater: score}}}; the score of a shared response counts for each of its systems."""
        scores: dict[str, dict[int, dict[int, int]]] = {system: {} for system in self.systems}
        for name, score in self.of.items():
            response = self.key["responses"][name]
            for system in response["systems"]:
                scores[system].setdefault(response["set"], {})[response["rater"]] = score
        return scores

    def by_response(self) -> list[list[int]]:
        """Return the scores of each response, from all its raters; a response of several systems counts once."""
        scores: dict[tuple[int, str], list[int]] = {}
        for name, score in self.of.items():
            response = self.key["responses"][name]
            scores.setdefault((response["set"], response["response"]), []).append(score)
        return list(scores.values())


def read_key(path: Path) -> dict[str, Any]:
    """Read the key of a study; a :class:`UserError` if it was changed."""
    key = read_json(path, "the key")
    if not isinstance(key, dict) or "kerbs-rate" not in key:
        raise UserError(f"{path} is not a key of kerbs-rate")
    if key["kerbs-rate"] != FORMAT:
        raise UserError(f"{path} was written by another version of kerbs-rate")
    if key.get("checksum") != checksum(key):
        raise UserError(f"{path} was changed after it was written: take it from a backup")
    return key


def listed(problem: str, lines: list[str]) -> UserError:
    """Return an error with a line for each problem, up to :data:`LISTED`."""
    more = [f"… and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
    return UserError("\n  ".join([f"{problem}:", *lines[:LISTED], *more]))


def unseen(key: dict[str, Any], name: str) -> str:
    """Return the description of a response that is in no sheet."""
    return f"rater {key['responses'][name]['rater']}, in no sheet"


def places(at: list[tuple[str, int]]) -> list[str]:
    """Return a line for each file, with its rows as ranges; entries of row 0 have no row and are counted."""
    rows: dict[str, list[int]] = {}
    for file, row in at:
        rows.setdefault(file, []).append(row)
    lines = []
    for file, numbers in rows.items():
        runs: list[list[int]] = []
        for row in sorted(numbers):
            if runs and row == runs[-1][-1] + 1:
                runs[-1][1:] = [row]
            else:
                runs.append([row])
        ranges = ", ".join("-".join(map(str, run)) for run in runs)
        lines.append(f"{file}, row {ranges}" if any(numbers) else f"{file}: {len(numbers)}")
    return lines


def cell(row: dict[str, str], column: str) -> str:
    """Return a cell without surrounding space; empty if the row is too short."""
    return row.get(column, "").strip()


def misplaced(key: dict[str, Any], name: str, row: dict[str, str]) -> bool:
    """Return whether the texts of a row belong to another id: a column was sorted without the others."""
    own = key["responses"][name]
    mates = [other for other in key["responses"].values() if other["rater"] == own["rater"]]

    def text(response: dict[str, Any], column: str) -> str:
        plain = key["sets"][response["set"] - 1]["input"] if column == cells.INPUT else response["response"]
        return cells.loose(plain)

    for column in (cells.INPUT, cells.RESPONSE):
        shown = cells.loose(cells.unescape(cell(row, column)))
        if shown and shown != text(own, column) and any(shown == text(other, column) for other in mates):
            return True
    return False


def problem_of(key: dict[str, Any], row: dict[str, str], at: dict[str, tuple[str, int]]) -> Optional[tuple[str, str]]:
    """Return (kind of problem, text to show) of a row, or None; ``at`` has the ids read so far."""
    name, score = cell(row, cells.ID), cell(row, cells.SCORE)
    if name not in key["responses"]:
        return FOREIGN, repr(name)
    if name in at:
        return TWICE, "{} is also in {}, row {}".format(name, *at[name])
    if misplaced(key, name, row):
        return MOVED, name
    if score and not SCORE.fullmatch(score):
        return INVALID, repr(score)
    return None


def read(paths: list[Path], key: dict[str, Any], partial: bool = False) -> Scores:
    """Read the scores of all sheets; errors list every problem."""
    scores: dict[str, int] = {}
    at: dict[str, tuple[str, int]] = {}
    problems: dict[str, list[str]] = {}
    for path in paths:
        for number, row in cells.read(path):
            problem = problem_of(key, row, at)
            if problem:
                problems.setdefault(problem[0], []).append(f"{path.name}, row {number}: {problem[1]}")
                continue
            name, score = cell(row, cells.ID), cell(row, cells.SCORE)
            at[name] = (path.name, number)
            if score:
                scores[name] = int(score[0])
    for kind in (FOREIGN, TWICE, MOVED, INVALID):
        if kind in problems:
            raise listed(kind, problems[kind])
    absent = [name for name in key["responses"] if name not in scores]
    if absent and not partial:
        what = f"{len(absent)} scores are missing (--partial goes on without them)"
        raise listed(what, places([at.get(name, (unseen(key, name), 0)) for name in absent]))
    if not scores:
        raise UserError("no sheet has any score")
    return Scores(key, scores, len(absent))


def sheets_in(folder: Path) -> list[Path]:
    """Return the sheets in the folder of a study."""
    sheets = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".tsv"))
    if not sheets:
        raise UserError(f"{folder} has no sheets (rater_1.csv, …)")
    return sheets


def load(paths: list[Path], key: Optional[Path] = None, partial: bool = False) -> Scores:
    """Read the scores of a study's folder, or of single sheets with their key."""
    if len(paths) == 1 and paths[0].is_dir():
        return read(sheets_in(paths[0]), read_key(key or paths[0] / KEY), partial)
    folders = [path for path in paths if path.is_dir()]
    if folders:
        raise UserError(f"{folders[0]} is a directory: give one folder, or sheets alone")
    if key is None:
        raise UserError("sheets named one by one need their key: --key key.json")
    return read(paths, read_key(key), partial)
