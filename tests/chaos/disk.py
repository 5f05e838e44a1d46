"""Trainings on a small disk that another program fills up at random moments, and empties later."""

import random
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

import training

SIZE = 8_000_000  # bytes: some eight checkpoints and a move log


class Filled(NamedTuple):
    """How a training ended on a full disk: with one line, or by itself; and how far its last checkpoint is."""

    ended: str
    updates: int


def mount(folder: Path) -> bool:
    """A file system in memory; False where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    """Give it back."""
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path, left: int) -> None:
    """Take all space but some bytes."""
    block = b"x" * 65536
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError:
            pass
        file.truncate(max(0, path.stat().st_size - left))


def until_the_end(data: Path, folder: Path, times: int, chance: random.Random) -> list[Filled]:
    """One training on a disk that fills up ``times`` times; every checkpoint is read after each."""
    filler, fills = folder / "filler", []
    while len(fills) < times:
        before = training.saved(folder)
        process = training.start(data, folder)
        lines: list[str] = []
        begun = threading.Event()

        def read(process=process, lines=lines, begun=begun) -> None:
            for line in process.stdout:
                lines.append(line)
                if "begin training epoch" in line or "senses moved" in line:
                    begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        begun.wait(60)
        time.sleep(chance.uniform(0, 1.5))
        if process.poll() is None:
            fill(filler, chance.choice([0, 100, 300_000, 900_000]))
        code = process.wait()
        reader.join()
        filler.unlink(missing_ok=True)
        after = training.saved(folder)  # raises if one is damaged
        for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
            assert (after.get(name) or 0) >= (before.get(name) or 0), f"{name} was lost"
        said = "".join(lines)
        if "Traceback" in said or (code and "No space left on device" not in lines[-1]):
            raise SystemExit(f"a full disk ended with {code}:\n{said[-3000:]}")
        if not code:
            break
        fills.append(Filled(lines[-1].strip(), after.get("checkpoint_last.pt") or 0))
        print(f"  the disk was full; the last checkpoint has {fills[-1].updates} updates", flush=True)
    training.finish(data, folder)
    return fills
