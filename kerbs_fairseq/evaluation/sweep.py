"""``kerbs-table``: train and evaluate all cells of a recipe, or go on where it stopped, and keep the table up to date.

A cell that fails is reported, and the others go on. Progress and the time left are shown after every model.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.paper import TASKS, Task
from kerbs_fairseq.evaluation.runs import SCORES, Run
from kerbs_fairseq.evaluation.table import markdown
from kerbs_fairseq.runs.errors import UserError as BadOutput

NAME = "kerbs-table"
LAST_LINES = 5
VALID = re.compile(r'\| valid \| .*?"epoch": (\d+).*?"valid_ppl": "([\d.]+)"')


def say(text: str) -> None:
    """Print at once, with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")  # in one piece: several models are under way
    sys.stdout.flush()


@dataclass
class Sweep:
    """The runs of one recipe."""

    recipe: Path
    out: Path
    cells: Sequence[str]
    seeds: Sequence[int]
    jobs: int
    options: Sequence[str]  # of train.sh
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: set[subprocess.Popen[str]] = field(default_factory=set)

    def run(self) -> bool:
        """All that is missing; whether all went well."""
        wanted = [(cell, seed) for seed in self.seeds for cell in self.cells]
        self.left = sum(not (self.folder(cell, seed) / SCORES).is_file() for cell, seed in wanted)
        say(f"{len(wanted)} models, {len(wanted) - self.left} done before, {self.jobs} at a time: {self.out}/runs")
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in [pool.submit(self.one, cell, seed) for cell, seed in wanted]:
                future.result()
        except BaseException:  # above all Ctrl-C: a training must not go on unseen
            pool.shutdown(wait=False, cancel_futures=True)
            with self.lock:
                for process in self.running:
                    os.killpg(process.pid, signal.SIGTERM)
            raise
        self.write()
        return not self.failed

    def folder(self, cell: str, seed: int) -> Path:
        """Where a run lives."""
        return self.out / "runs" / cell / f"seed_{seed}"

    def one(self, cell: str, seed: int) -> None:
        """Train and evaluate one model; of one that is done, the scripts check that it was done with these options."""
        began, name = time.monotonic(), f"{cell}, seed {seed}"
        done_before = (self.folder(cell, seed) / SCORES).is_file()
        if not done_before:
            say(f"{name}: training")
        common = ["--out", str(self.out), "--seed", str(seed)]
        log = self.folder(cell, seed) / "recipe.log"
        train, evaluate = str(self.recipe / "train.sh"), str(self.recipe / "evaluate.sh")
        try:
            problem = self.call(["bash", train, cell, *common, *self.options], log, name)
            problem = problem or self.call(["bash", evaluate, cell, *common], log, name)
            scores = "" if problem else self.scores(cell, seed)
        except (BadOutput, OSError) as error:
            problem = f"    {error}"
        with self.lock:
            self.left -= not done_before
            if problem:
                self.failed.append(name)
                say(f"{name}: FAILED, all it said is in {log}:\n{problem}")
            elif not done_before:
                self.seconds.append(time.monotonic() - began)
                mean = sum(self.seconds) / len(self.seconds)
                say(
                    f"{name}: {scores}, {self.seconds[-1] / 60:.1f} min; {self.left} to go, about "
                    f"{mean * self.left / self.jobs / 60:.0f} min"
                )
                self.write()

    def scores(self, cell: str, seed: int) -> str:
        """Of a run, in short."""
        found = Run(self.folder(cell, seed)).scores or {}
        return ", ".join(f"{name} {found[name]:.2f}" for name in ("bleu", "ppl") if name in found)

    def call(self, command: list[str], log: Path, name: str) -> str:
        """Run a script and show each validation; the end of what it printed if it fails, or nothing."""
        environment = dict(os.environ)
        if self.jobs > 1:  # models side by side, each on its share of the cores
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        log.parent.mkdir(parents=True, exist_ok=True)
        last: list[str] = []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, encoding="utf-8",
            errors="replace", start_new_session=True,
        )  # fmt: skip
        with self.lock:
            self.running.add(process)
        assert process.stdout is not None
        with log.open("a", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                last = [*last[1 - LAST_LINES :], line]
                valid = VALID.search(line)
                if valid:
                    say(f"{name}: epoch {valid[1]}, valid ppl {valid[2]}")
        code = process.wait()
        with self.lock:
            self.running.remove(process)
        if code == 0:
            return ""
        return "\n".join(f"    {line.rstrip()[:400]}" for line in last) or f"    exit code {code}"

    def write(self) -> None:
        """The table as it is now, whole or not at all."""
        path = self.out / "table.md"
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(markdown(TASKS[self.recipe.name], self.out, self.failed), encoding="utf-8")
            os.replace(beside, path)
        except BadOutput as problem:  # a broken folder of another run must not stop this one
            say(f"no table: {problem}")


def cells_of(text: Optional[str], task: Task) -> list[str]:
    """The cells asked for, or those of the paper; BadOutput if there is none of that name."""
    if text is None:
        return list(task.figures)
    asked = [name for name in text.split(",") if name]
    for name in asked:
        if not task.has(name):
            raise BadOutput(
                f"--cells: there is no cell {name!r}; there are {', '.join(task.cells)}, and variants of them, "
                f"{task.cells[0]}+NAME, with letters, digits, '.', '_' and '-' in the name"
            )
    return list(dict.fromkeys(asked))


def seeds_of(text: str) -> list[int]:
    """1,2,3, each once."""
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", text):
        raise BadOutput(f"--seeds {text}: whole numbers from 1 on with commas between them")
    return list(dict.fromkeys(int(seed) for seed in text.split(",")))


def stop(*_: object) -> None:
    """End as with Ctrl-C."""
    raise KeyboardInterrupt


def arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog="What stands behind -- goes to fairseq-train, the same for all cells.",
    )
    parser.add_argument("recipe", type=Path, help="folder of the recipe, such as recipes/mt_iwslt16")
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare.sh was given")
    parser.add_argument("--seeds", default="1,2,3", help="seeds of the training (1,2,3)")
    parser.add_argument(
        "--cells", help="only these, with commas between them (those of the paper); CELL+NAME: a variant of a cell"
    )
    parser.add_argument("--jobs", type=int, default=1, help="models trained side by side (1)")
    parser.add_argument("--scale", help="paper or small, for train.sh")
    parser.add_argument("--updates", help="length of the training, for train.sh")
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    args.more = given[end:]
    return args


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = arguments(argv)
    args.recipe = Path(os.path.abspath(args.recipe))
    if args.recipe.name not in TASKS or not (args.recipe / "train.sh").is_file():
        sys.exit(f"{NAME}: {args.recipe} is no recipe; there are {', '.join(TASKS)}")
    if not (args.out / "binary").is_dir():
        sys.exit(f"{NAME}: {args.out} has no data: run {args.recipe.name}/prepare.sh --out {args.out} first")
    if args.jobs < 1:
        sys.exit(f"{NAME}: --jobs {args.jobs}: at least 1")
    options = [
        part for name in ("scale", "updates") if getattr(args, name) for part in (f"--{name}", getattr(args, name))
    ]
    signal.signal(signal.SIGTERM, stop)
    try:
        seeds = seeds_of(args.seeds)
        cells = cells_of(args.cells, TASKS[args.recipe.name])
        fine = Sweep(args.recipe, args.out, cells, seeds, args.jobs, [*options, *args.more]).run()
    except BadOutput as problem:
        sys.exit(f"{NAME}: {problem}")
    except OSError as error:
        sys.exit(f"{NAME}: {args.out} cannot be written: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(f"\n{NAME}: stopped; the same command goes on from here")
    table = args.out / "table.md"
    print(f"\n{table.read_text(encoding='utf-8')}" if table.is_file() else "", end="")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
