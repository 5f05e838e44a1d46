"""Cells of a rating sheet: text that a spreadsheet program opens and saves without changes.

A spreadsheet program interprets a cell that begins with = + - @ as a formula, and one like 1/2 as a date. Such a cell
gets an apostrophe in front, as does one that begins with an apostrophe, so that the prefix can be removed again.
"""

import csv
import io
import re
import unicodedata
from pathlib import Path

from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_bytes

# what spreadsheet programs may ignore before a formula: Unicode categories, and invisible letters
INVISIBLE = ("Cc", "Cf", "Cn", "Co", "Cs", "Mn", "Zl", "Zp")
FILLERS = {"\u115f", "\u1160", "\u2800", "\u3164", "\uffa0"}
FORMULA = tuple("=+-@'")
LOOKS_LIKE_A_NUMBER = re.compile(
    r"(?:[\W\d_]|e|am|pm|(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)*", re.IGNORECASE
)
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
SET, INPUT, REFERENCE, ID, RESPONSE, SCORE = "set", "input", "reference", "response id", "response", "score"


def shown(line: str) -> str:
    """Return a line of a text file as raters see it: without control characters, line ends and surrounding space."""
    visible = (" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in line)
    return "".join(visible).strip()


def escape(text: str) -> str:
    """Return ``text`` as a cell that no spreadsheet program turns into a formula, a number or a date."""
    visible = "".join(c for c in text if unicodedata.category(c) not in INVISIBLE and c not in FILLERS).strip()
    number = any(c.isdigit() for c in visible) and LOOKS_LIKE_A_NUMBER.fullmatch(visible)
    formula = unicodedata.normalize("NFKC", visible).startswith(FORMULA)
    harmless = not text.startswith("'") and not formula and not number
    return text if harmless and visible.lower() not in ("true", "false") else f"'{text}"


def unescape(cell: str) -> str:
    """Return the text of a cell that :func:`escape` made."""
    return cell[1:] if cell.startswith("'") else cell


def loose(text: str) -> str:
    """Return the letters and digits of a text, which survive changes of quotes and spaces by spreadsheet programs."""
    return "".join(c for c in text.casefold() if c.isalnum())


def write(path: Path, rows: list[list[str]], delimiter: str) -> None:
    """Write a CSV file with a byte order mark, by which Excel recognises UTF-8."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=delimiter, quoting=csv.QUOTE_ALL).writerows(rows)


def decode(data: bytes, path: Path) -> str:
    """Decode a sheet from any encoding that spreadsheet programs save."""
    if data.startswith(b"PK"):
        raise UserError(f"{path} is a spreadsheet, not text: save it as CSV")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # Excel's "Unicode text"
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # an old code page: ids and scores are plain ASCII


def read(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return (row number, {column: cell}) of a sheet, with any delimiter and line ends."""
    text = decode(read_bytes(path), path).replace("\0", "")
    for delimiter in DELIMITERS.values():
        try:
            rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        except csv.Error as error:
            raise UserError(f"{path} cannot be read as CSV: {error}") from None
        header = [name.strip().lower() for name in rows[0]] if rows else []
        if ID in header and SCORE in header:
            filled = [(number, row) for number, row in enumerate(rows[1:], start=2) if any(map(str.strip, row))]
            return [(number, dict(zip(header, row))) for number, row in filled]
    raise UserError(f"{path} is not a rating sheet: its first row must have the columns {ID!r} and {SCORE!r}")
