"""An archive of finished runs without their models, so that a table can be continued on another machine.

The archive has settings, scores, outputs and the epochs of the logs of a recipe's runs: what ``kerbs-table`` needs to
skip them, and the bootstrap to compare them with later runs.
"""

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kerbs_fairseq.corpora.archives import unpack
from kerbs_fairseq.evaluation.grids import DIVERGED, has_ended
from kerbs_fairseq.evaluation.results import data_of
from kerbs_fairseq.evaluation.runs import NLL, TEXT, is_run
from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import cannot_write, read_bytes, read_text, write
from kerbs_fairseq.runs.outputs import SCORES

FILES = ("training", "trained", "command", "commit", "evaluation", SCORES, TEXT, NLL, DIVERGED)
DATA = "data"
SUFFIX = ".tar.xz"


def epochs(log: Path) -> bytes:
    """Return the lines of a log that are written at the end of an epoch."""
    return "".join(f"{line}\n" for line in logs.epoch_ends(logs.read_lines(log))).encode()


def contents(out: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, content) of every file to keep of the finished runs below ``out``."""
    yield DATA, data_of(out).encode()
    for folder in sorted(path for path in out.glob("runs/*/seed_*") if is_run(path) and has_ended(path)):
        lenpens = [path.parent for path in folder.glob(f"valid_lenpen_*/{SCORES}")]
        names = [*FILES, *(f"{lenpen.name}/{name}" for lenpen in lenpens for name in ("evaluation", SCORES))]
        for path in sorted(folder / name for name in names):
            if path.is_file():
                yield str(path.relative_to(out)), read_bytes(path)
        if (folder / logs.LOG).is_file():
            yield str((folder / logs.LOG).relative_to(out)), epochs(folder / logs.LOG)


def keep(out: Path, path: Path) -> None:
    """Write the archive, completely or not at all; the same runs give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, content in contents(out):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    write(path, buffer.getvalue())


def restore(path: Path, out: Path) -> tuple[int, int]:
    """Extract the runs of an archive below ``out``; return how many, and how many existed and were not replaced."""
    try:
        with tempfile.TemporaryDirectory(prefix=".restored.", dir=out) as beside:
            unpacked = Path(beside) / "all"
            unpack(path, unpacked)
            if not (unpacked / DATA).is_file():
                raise UserError(f"{path} is not an archive that kerbs-evaluate collect wrote")
            here, there = data_of(out), read_text(unpacked / DATA)
            if here != there:
                raise UserError(f"{path} has runs on other data ({there}) than {out} ({here}): prepare that first")
            restored = before = 0
            for folder in sorted(unpacked.glob("runs/*/seed_*")):
                target = out / folder.relative_to(unpacked)
                if target.exists():
                    before += 1
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder, target)
                restored += 1
    except OSError as error:
        cannot_write(out, error)
    return restored, before
