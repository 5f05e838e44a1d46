"""Trainings that are ended by ``kill -9``: at any moment, while a checkpoint is written, while senses move."""

import os
import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

import training

from kerbs_fairseq.runs.logs import read_moves

KINDS = ("any moment", "a save", "an event")
LONGEST = 3.0  # seconds after which "any moment" ends


class Kill(NamedTuple):
    """What a process was doing when it was killed, and how far the training had come."""

    kind: str
    updates: int  # of the last checkpoint, 0 if there was none
    half_written: bool  # whether it has left the beginning of a file, or moves of updates that no checkpoint has


class Watch:
    """Kills a process at a moment of one kind; ``hit`` says whether it came to that."""

    def __init__(self, process: "training.subprocess.Popen[str]", folder: Path, kind: str, chance: random.Random):
        self.process, self.folder, self.kind, self.chance = process, folder, kind, chance
        self.number, self.hit = chance.randint(1, 4), False  # the first save or event, or a later one
        self.lines: list[str] = []
        self.left = {path: path.stat().st_mtime_ns for path in folder.glob("*.tmp")}  # by those that were killed before

    def kill(self) -> None:
        self.hit = self.process.poll() is None
        self.process.kill()

    def run(self) -> None:
        """Until the process has ended."""
        other = {"any moment": self.at_any_moment, "a save": self.at_a_save}.get(self.kind)
        thread = threading.Thread(target=other) if other else None
        if thread:
            thread.start()
        events = 0
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            events += "senses moved" in line
            if self.kind == "an event" and events == self.number and not self.hit:
                time.sleep(self.chance.choice([0, 0, 0.0005, 0.002]))
                self.kill()
        self.process.wait()
        if thread:
            thread.join()

    def at_any_moment(self) -> None:
        begun = 0.0
        while not begun and self.process.poll() is None:
            begun = any("training on" in line for line in self.lines)
            time.sleep(0.01)
        time.sleep(self.chance.uniform(0, LONGEST))
        self.kill()

    def at_a_save(self) -> None:
        """When a file has begun to be written beside a checkpoint, at the same moment or a little later."""
        seen: set[int] = set()
        while self.process.poll() is None:
            for entry in os.scandir(self.folder) if self.folder.exists() else ():
                if entry.name.endswith(".tmp") and self.is_new(entry):
                    seen.add(entry.inode())
            if len(seen) >= self.number:
                time.sleep(self.chance.choice([0, 0, 0.0005, 0.001]))
                self.kill()
                return
            time.sleep(0.0001)

    def is_new(self, entry: "os.DirEntry[str]") -> bool:
        """Whether a file is being written by this process; it may have been renamed by now."""
        try:
            return entry.stat().st_mtime_ns != self.left.get(Path(entry.path))
        except FileNotFoundError:
            return True


def half_written(folder: Path, watch: Watch, updates: int) -> bool:
    """Whether a process was in the middle of something."""
    files = any(path.stat().st_mtime_ns != watch.left.get(path) for path in folder.glob("*.tmp"))
    moves = read_moves(folder / "moves.tsv") if (folder / "moves.tsv").exists() else []
    return files or any(update > updates for update, _, _ in moves)


def until_the_end(data: Path, folder: Path, wanted: int, chance: random.Random) -> list[Kill]:
    """One training that is killed up to ``wanted`` times, and then finished; checkpoints are read after each kill."""
    kills: list[Kill] = []
    while len(kills) < wanted:
        kind = KINDS[len(kills) % len(KINDS)]
        before = training.saved(folder).get("checkpoint_last.pt") or 0 if folder.exists() else 0
        watch = Watch(training.start(data, folder), folder, kind, chance)
        watch.run()
        code = watch.process.returncode
        if code not in (0, -9):
            raise SystemExit(f"a training that was to go on ended with {code}:\n{''.join(watch.lines)[-3000:]}")
        after = training.saved(folder).get("checkpoint_last.pt") or 0 if folder.exists() else 0  # raises if damaged
        assert after >= before, "a checkpoint was lost"
        if code == 0:
            return kills  # it has come to its end before the kill
        kills.append(Kill(kind, after, half_written(folder, watch, after)))
        rest = "; it has left something half-done" if kills[-1].half_written else ""
        print(f"  killed at {kind}; the last checkpoint has {after} updates{rest}", flush=True)
    training.finish(data, folder)
    return kills
