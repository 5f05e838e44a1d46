"""Read and write text by lines; errors name the file and the line."""

import gzip
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from kerbs_fairseq.runs.errors import UserError, reason

NO_SPACE = {"\u200b", "\ufeff", "\u00ad"}  # zero-width space, byte-order mark, soft hyphen: all invisible


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, decompressed if it is gzipped."""
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from None


def raw_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file as they are, without line ends (of any system)."""
    number = 0
    try:
        with open_bytes(path) as file:
            for line in file:
                number += 1
                yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not UTF-8 (byte {error.object[error.start]:#04x}); convert it, for example by "
            "iconv -f latin1 -t utf-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:  # a gzip file that ends early, or is broken
        raise UserError(f"{path}, after line {number}: cannot be read further ({reason(error)})") from None


def clean(line: str) -> str:
    """Return ``line`` in composed Unicode (NFC), with single spaces, without control or invisible characters."""
    shown = (" " if c.isspace() else c for c in line if c not in NO_SPACE)
    kept = "".join(c for c in shown if c == " " or unicodedata.category(c) != "Cc")
    return " ".join(unicodedata.normalize("NFC", kept).split())


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file, cleaned; raise a UserError if it is empty."""
    lines = [clean(line) for line in raw_lines(path)]
    if not any(lines):
        raise UserError(f"{path} is empty")
    return lines


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write ``lines`` to a file, one per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
