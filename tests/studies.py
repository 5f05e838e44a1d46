"""Rating studies: written, filled and read."""

import csv
import io
import json
from pathlib import Path
from typing import Callable

import pytest

from kerbs_fairseq.human_evaluation import cells as rating_cells
from kerbs_fairseq.human_evaluation import command as rate

NAMES = ("kerbs", "plain_softmax", "mixture")


Score = Callable[[int, str, str], str]  # rater, input, response


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8-sig"))  # a mark that must not be shown
    return path


def study(folder: Path, items: int = 8, sets: int = 6, raters: int = 3, options: str = "") -> Path:
    """A synthetic study; every fourth item has the same response from the last two systems."""
    write(folder / "source", [f"question {i}" for i in range(items)])
    for place in range(len(NAMES)):
        responses = [f"answer {i} {min(place, 1) if i % 4 == 0 else place}" for i in range(items)]
        write(folder / f"{place}.txt", responses)
    systems = [f"--system={name}={folder}/{place}.txt" for place, name in enumerate(NAMES)]
    arguments = f"--source {folder}/source -o {folder}/study --sets {sets} --raters {raters} {options}"
    rate.main(["sheet", *arguments.split(), *systems])
    return folder / "study"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def fill(folder: Path, score: Score, delimiter: str = ",", end: str = "\r\n", code: str = "utf-8-sig") -> None:
    """What raters and their spreadsheet programs do."""
    for path in folder.glob("rater_*.csv"):
        rows = rows_of(path)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, rows[0], delimiter=delimiter, lineterminator=end)
        writer.writeheader()
        for row in rows:
            texts = [rating_cells.unescape(row[column]) for column in ("input", "response")]
            writer.writerow({**row, "score": score(int(path.stem[-1]), *texts)})
        path.write_bytes(text.getvalue().encode(code))


def report(*arguments: object) -> dict:
    """``kerbs-rate report --json``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        rate.main(["report", *map(str, arguments), "--json"])
        return json.loads(rate.sys.stdout.getvalue(), parse_constant=pytest.fail)


def last_digit(rater: int, question: str, response: str) -> str:
    return response[-1]
