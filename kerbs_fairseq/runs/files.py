"""Read files with one clear error; write a file or a folder completely or not at all."""

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Union

from kerbs_fairseq.runs.errors import UserError, reason

LONGEST = 100  # characters of a name that are kept in that of its temporary file: names have a maximum length


def read_bytes(path: Path, what: str = "") -> bytes:
    """Return the content of a file, called ``what`` in an error."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {reason(error)}".lstrip()) from None


def read_text(path: Path, what: str = "") -> str:
    """Return the text of a file, called ``what`` in an error."""
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not UTF-8 (byte {error.start})".lstrip()) from None


def read_json(path: Path, what: str = "") -> Any:
    """Return the content of a JSON file, called ``what`` in an error."""
    try:
        return json.loads(read_text(path, what))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} {path} cannot be read as JSON: {reason(error)}".lstrip()) from None


def destination(path: Path, inputs: Iterable[Path] = ()) -> Path:
    """Return the regular file that writing to ``path`` makes or replaces, links resolved; refuse one of ``inputs``."""
    real = Path(os.path.realpath(path))
    try:
        state = path.stat()  # follows links, also those in /dev
    except FileNotFoundError:
        return real
    except OSError as error:
        cannot_write(path, error)
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"cannot write {path}: it is {kind_of(path)}")
    if not os.access(real, os.W_OK):
        raise UserError(f"cannot write {path}: {os.strerror(errno.EACCES)}")
    if any(one.exists() and one.samefile(real) for one in inputs):
        raise UserError(f"cannot write {path}: it is one of the inputs; name another output")
    return real


def kind_of(path: Path) -> str:
    """Return what ``path`` is instead of a regular file."""
    return "a directory" if path.is_dir() else "not a regular file"


def cannot_write(path: Path, error: Exception) -> NoReturn:
    """Raise the UserError of everything here that writes."""
    raise UserError(f"cannot write {path}: {reason(error)}") from None


@contextlib.contextmanager
def replacing(path: Path, inputs: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path``, links resolved, on success, and is removed on failure."""
    real = destination(path, inputs)
    try:
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o666 & ~umask()
        number, name = tempfile.mkstemp(prefix=f".{real.name[:LONGEST]}.", dir=real.parent)
    except OSError as error:
        cannot_write(path, error)
    os.close(number)
    with renaming(Path(name), real, path) as beside:
        yield beside
        beside.chmod(mode)


@contextlib.contextmanager
def renaming(beside: Path, real: Path, path: Path) -> Iterator[Path]:
    """Yield ``beside``, which is renamed to ``real`` on success, and removed on failure; an error names ``path``."""
    try:
        yield beside
        sync(beside)
        os.replace(beside, real)
        sync(real.parent)
    except (OSError, RuntimeError) as error:  # torch.save raises a RuntimeError on a full disk
        cannot_write(path, error.__context__ if isinstance(error.__context__, OSError) else error)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()  # part of a file would only fill the disk


def write(path: Path, content: Union[str, bytes], inputs: Iterable[Path] = ()) -> None:
    """Make or replace a file."""
    data = content.encode("utf-8", errors="replace") if isinstance(content, str) else content
    with replacing(path, inputs) as beside:
        beside.write_bytes(data)


@contextlib.contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` on success, and is removed on failure.

    An existing ``path`` is an error, unless it is an empty folder, or one to ``replace``.
    """
    given, path = path, Path(os.path.realpath(path))
    beside = old = None
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        if os.path.lexists(path) and not replace and not (path.is_dir() and not any(path.iterdir())):
            raise UserError(f"{given} exists: nothing is overwritten; name another folder, or remove it")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name[:LONGEST]}.", dir=path.parent))
        yield beside
        for file in beside.rglob("*"):
            sync(file)
        beside.chmod(0o777 & ~umask())
        if path.exists():
            old = beside.with_name(f"{beside.name}.old")
            path.rename(old)
        beside.rename(path)
        sync(path.parent)
    except OSError as error:
        if old is not None and not path.exists():
            old.rename(path)
        cannot_write(given, error)
    finally:
        for folder in (beside, old if path.exists() else None):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
        remove_empty(made)


@contextlib.contextmanager
def updating(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder whose files are moved to ``folder`` on success; its other files stay.

    Files of sub-folders are moved first, so that a page is replaced after the pictures that it shows.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new.", dir=folder) as beside:
            yield Path(beside)
            files = [(file, folder / file.relative_to(beside)) for file in Path(beside).rglob("*") if file.is_file()]
            targets = [(file, destination(target)) for file, target in files]
            for file, target in sorted(targets, key=lambda pair: (-len(pair[0].parts), pair)):
                sync(file)
                file.chmod(0o666 & ~umask())
                target.parent.mkdir(exist_ok=True)
                os.replace(file, target)
    except OSError as error:
        cannot_write(folder, error)
    finally:
        remove_empty(made)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of ``folders`` that are empty: they were made for files that were not written."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, where the file system can do that."""
    number = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError if path.is_dir() else NotImplementedError):
            os.fsync(number)
    finally:
        os.close(number)


def umask() -> int:
    """Return the umask of this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
