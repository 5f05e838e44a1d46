"""The logs of training: that of fairseq-train, JSON or plain, and the table of ``--kerbs-move-log``.

The plugin takes the names and formats of what it logs from here, so that they are read as they were written.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_bytes, read_text

LOG = "train.log"  # the file that recipes and the demo write beside a checkpoint
INNER, TRAIN, VALID = "train_inner", "train", "valid"
DIVERGED = re.compile(r"FloatingPointError|gradients are Nan/Inf")
MOVED_LINE = "update %d: %d senses moved"  # the line of an event
EVENT = re.compile(r"\b" + MOVED_LINE.replace("%d", r"(\d+)"))
PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
EPOCH_END = re.compile(r"\bepoch \d+ \| (?:valid on '([^']+)' subset \| )?")
WITHIN_EPOCH = re.compile(r"\bepoch \d+(?: \| [^|:]+)?:\s+\d+ / \d+ ")
SPEED = re.compile(r"(?:Translated|Evaluated) .*?([\d.]+) tokens/s\)")

# --- names of the metrics of the senses, in fairseq's log and TensorBoard
METRIC = "kerbs_"  # all of them begin so
MOVED, MOVED_TOTAL, IDLE = "kerbs_moved", "kerbs_moved_total", "kerbs_idle"
WORDS_WITH, MORE = "kerbs_words_with_", "more"  # followed by a number of senses, or by "more"
MOST_SENSES = "kerbs_most_senses"
THETA, THETA_STD, BIAS_STD = "kerbs_theta", "kerbs_theta_std", "kerbs_bias_std"
IDLE_SHARE = 0.01  # a sense with less than this share of its word's usage counts as idle


class Record(NamedTuple):
    """The values of one line of a log."""

    kind: str  # train_inner, train (the means over an epoch), or the name of the set that was validated on
    values: dict[str, float]  # by fairseq's names: loss, ppl, num_updates, …

    @property
    def update(self) -> Optional[int]:
        """The number of updates at that line; None if it is not known."""
        at = self.values.get("num_updates", math.nan)
        return int(at) if math.isfinite(at) else None


def record_of(line: str) -> Optional[Record]:
    """Return the values of a line of ``--log-format json`` or ``simple``; None if it has no values."""
    match = re.search(r"\{.*\}\s*$", line)
    if match:
        try:
            values = json.loads(match[0])
        except (ValueError, RecursionError):
            return None
        return _from_json(dict(numbers(values))) if isinstance(values, dict) else None
    within, end = WITHIN_EPOCH.search(line), EPOCH_END.search(line)
    if within:
        return Record(INNER, dict(numbers(dict(re.findall(r"(\w+)=([^,\s]+)", line[within.end() :])))))
    if end:
        return Record(end[1] or TRAIN, dict(numbers(dict(re.findall(r"(\w+) (\S+)", line[end.end() :])))))
    return None


def _from_json(values: dict[str, float]) -> Optional[Record]:
    """Return the record of a JSON line: every name begins with that of the set, except in lines within an epoch."""
    if "num_updates" in values:
        return Record(INNER, values)
    endings = ("_num_updates", "_loss", "_ppl")
    kinds = {name.removesuffix(end) for end in endings for name in values if name.endswith(end)}
    if not kinds:
        return None
    kind = min(kinds, key=len)  # from valid_loss, not from valid_nll_loss
    return Record(kind, {name.removeprefix(f"{kind}_"): value for name, value in values.items()})


def numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the entries that are numbers; fairseq writes most of them as text."""
    for name, value in values.items():
        try:
            yield name, float(value)
        except (TypeError, ValueError, OverflowError):
            continue


def records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a log, in its order."""
    yield from (record for record in map(record_of, lines) if record is not None)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a log; bytes that are not UTF-8, from other programs, are replaced."""
    return read_bytes(path, "the log").decode("utf-8", errors="replace").splitlines()


def epoch_ends(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are written at the end of an epoch or of a validation."""
    return (line for line in lines if " | train | " in line or " | valid | " in line)


def has_diverged(path: Path) -> bool:
    """Return whether a log says that training ended because of gradients or losses that are not finite."""
    return path.is_file() and DIVERGED.search(read_text(path)) is not None


def events(lines: Iterable[str]) -> dict[int, int]:
    """Return the number of senses that moved at each event, by update."""
    return {int(match[1]): int(match[2]) for match in map(EVENT.search, lines) if match}


def best(path: Path, name: str = "ppl", subset: str = VALID) -> Optional[float]:
    """Return the lowest validation ``name`` in a log: ppl (2 to the power of nll_loss) or loss; None if none."""
    entries = records(read_lines(path)) if path.is_file() else ()
    values = (record.values.get(name, math.nan) for record in entries if record.kind == subset)
    return min((value for value in values if math.isfinite(value)), default=None)


def parameters(path: Path) -> Optional[int]:
    """Return fairseq's number of parameters, with the copies in encoder layers; None if the log has none."""
    match = PARAMETERS.search("\n".join(read_lines(path))) if path.is_file() else None
    return int(match[1].replace(",", "")) if match else None


def seconds_per_update(log: Path) -> Optional[float]:
    """Return the training time per update without validation, over all complete epochs of a log; None if none."""
    seconds, updates = 0.0, 0
    for record in records(read_lines(log)) if log.is_file() else ():
        wall, number = record.values.get("train_wall", math.nan), record.update
        if record.kind == TRAIN and number is not None and number > updates and math.isfinite(wall):
            seconds, updates = seconds + wall, number
    return seconds / updates if updates and seconds else None


def tokens_per_second(*logs: Path) -> Optional[float]:
    """Return the speed of fairseq-generate or fairseq-eval-lm, from the first of its logs that has it; None if none."""
    for log in logs:
        for line in read_lines(log) if log.is_file() else ():
            match = SPEED.search(line)
            if match:
                return float(match[1])
    return None


# --- the table of moves


class Move(NamedTuple):
    """A row of the table: a sense that moved, and its statistics before the move."""

    update: int
    sense: int
    from_word: str
    to_word: str
    usage: float
    log_accuracy: float


HEADER = "\t".join(Move._fields)


def move_rows(text: str) -> list[list[str]]:
    """Return the cells of a table of moves; an incomplete last line, of a running or killed training, is left out.

    Raise a ValueError if the text is something else.
    """
    head, *lines = text.split("\n")
    rows = [line.split("\t") for line in lines[:-1]]
    whole = all(len(row) == len(Move._fields) and re.fullmatch("[0-9]{1,18}", row[0]) for row in rows)
    if head != HEADER or not lines or not whole:
        raise ValueError("not a table of moves")
    return rows


def read_moves(path: Path) -> list[tuple[int, str, str]]:
    """Return (update, from word, to word) of every move in a table."""
    text = read_text(path, "the table of moves")
    try:
        return [(int(update), from_word, to_word) for update, _, from_word, to_word, *_ in move_rows(text)]
    except ValueError:
        raise UserError(f"{path} is not a table of moves as --kerbs-move-log writes it") from None
