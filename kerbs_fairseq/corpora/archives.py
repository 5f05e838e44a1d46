"""Unpack untrusted archives: regular files only, inside one new folder, with this user's owner and permissions."""

import fnmatch
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from kerbs_fairseq.runs.errors import UserError, told
from kerbs_fairseq.runs.files import new_folder

SUFFIXES = (".tar", ".tgz", ".tar.gz", ".zip")  # archives within an archive, which are unpacked too


class Member(NamedTuple):
    """A file of an archive; for links, devices and the like only the name is used."""

    name: str
    is_file: bool
    content: Any  # a function that opens it


def members(archive: IO[bytes], name: str) -> Iterator[Member]:
    """Yield the members of a tar archive, compressed or not, or of a zip archive, without folders."""
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    yield Member(info.filename, True, lambda info=info: zipped.open(info))
        return
    with tarfile.open(fileobj=archive, mode="r:*") as tarred:
        for entry in tarred:
            if not entry.isdir():
                yield Member(entry.name, entry.isfile(), lambda entry=entry: tarred.extractfile(entry))


def inside(folder: Path, name: str, archive: Path) -> Path:
    """Return where a member goes; a path that leads outside ``folder`` is an error for the whole archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise UserError(f"{archive} has a file {name!r}, which leads outside: it is not unpacked")
    return folder / path


def unpack(archive: Path, out: Path, patterns: Sequence[str] = ()) -> dict[str, int]:
    """Unpack the files that match one of ``patterns`` (none: all) to the new folder ``out``, completely or not at all.

    An archive among them is replaced by its files. Links and devices are left out. Return how many of each.
    """
    counts = {"files": 0, "left_out": 0}
    with told(f"{archive} cannot be unpacked"), archive.open("rb") as file, new_folder(out) as folder:
        for member in members(file, archive.name):
            target = inside(folder, member.name, archive)
            if patterns and not any(fnmatch.fnmatchcase(member.name, pattern) for pattern in patterns):
                continue
            if not member.is_file:
                counts["left_out"] += 1
                continue
            with closing(member.content()) as content:
                if not member.name.endswith(SUFFIXES):
                    counts["files"] += write(content, target)
                    continue
                for inner in members(content, member.name):
                    target = inside(folder, inner.name, archive)
                    if inner.is_file:
                        with closing(inner.content()) as text:
                            counts["files"] += write(text, target)
                    else:
                        counts["left_out"] += 1
        if not counts["files"]:
            raise UserError(f"{archive} has no file {' or '.join(patterns)}".rstrip())
    return counts


def write(content: IO[bytes], path: Path) -> int:
    """Write one file, without the permissions in the archive; return 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)
    return 1
