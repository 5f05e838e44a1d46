"""Reading and writing text by lines: what is wrong with a file is said, and nothing is written by halves."""

import contextlib
import gzip
import os
import shutil
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

NO_SPACE = {"\u200b", "\ufeff", "\u00ad"}  # zero-width space, byte-order mark, soft hyphen: nobody sees them


class BadCorpus(Exception):
    """A file or folder that is not what it should be; the text says what to do."""


def open_bytes(path: Path) -> IO[bytes]:
    """The file, unpacked if it is gzipped."""
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise BadCorpus(f"{path} cannot be read: {error.strerror or error}") from None


def raw_lines(path: Path) -> Iterator[str]:
    """Its lines as they are, without line ends (of any system)."""
    number = 0
    try:
        with open_bytes(path) as file:
            for line in file:
                number += 1
                yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadCorpus(
            f"{path}, line {number}: not UTF-8 (byte {error.object[error.start]:#04x}); convert it, for example by "
            "iconv -f latin1 -t utf-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:  # a gzip file that ends early, or is broken
        raise BadCorpus(f"{path}, after line {number}: cannot be read on ({error})") from None


def clean(line: str) -> str:
    """Composed Unicode, one space where there was any white space, no control or invisible characters."""
    shown = (" " if c.isspace() else c for c in line if c not in NO_SPACE)
    kept = "".join(c for c in shown if c == " " or unicodedata.category(c) != "Cc")
    return " ".join(unicodedata.normalize("NFC", kept).split())


def read_lines(path: Path) -> list[str]:
    """Its lines, cleaned."""
    lines = [clean(line) for line in raw_lines(path)]
    if not any(lines):
        raise BadCorpus(f"{path} is empty")
    return lines


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """One line each."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder to write to, which becomes ``path`` if all goes well, and is removed if not."""
    if path.exists():
        raise BadCorpus(f"{path} is there already: remove it, or choose another folder")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.mkdir(parents=True)
        yield beside
        beside.rename(path)
    except OSError as error:
        raise BadCorpus(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
