"""``kerbs-table``: train and evaluate all cells of a recipe, or go on where it stopped, and keep the table up to date.

A cell that fails is reported, and the others go on. Progress and the time left are shown after every model.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kerbs_fairseq.corpora.lines import BadCorpus
from kerbs_fairseq.evaluation.outputs import BadOutput
from kerbs_fairseq.evaluation.paper import TASKS, Task
from kerbs_fairseq.evaluation.runs import Run
from kerbs_fairseq.evaluation.table import markdown

NAME = "kerbs-table"
LAST_LINES = 5


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

    def run(self) -> bool:
        """All that is missing; whether all went well."""
        wanted = [(cell, seed) for seed in self.seeds for cell in self.cells]
        todo = [(cell, seed) for cell, seed in wanted if Run(self.folder(cell, seed)).scores is None]
        self.left = len(todo)
        say(f"{len(wanted)} models, {len(wanted) - len(todo)} done before, {self.jobs} at a time: {self.out}/runs")
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in [pool.submit(self.one, cell, seed) for cell, seed in todo]:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.write()
        return not self.failed

    def folder(self, cell: str, seed: int) -> Path:
        """Where a run lives."""
        return self.out / "runs" / cell / f"seed_{seed}"

    def one(self, cell: str, seed: int) -> None:
        """Train and evaluate one model."""
        began = time.monotonic()
        say(f"{cell}, seed {seed}: training")
        common = ["--out", str(self.out), "--seed", str(seed)]
        log = self.folder(cell, seed) / "recipe.log"
        train, evaluate = str(self.recipe / "train.sh"), str(self.recipe / "evaluate.sh")
        problem = self.call(["bash", train, cell, *common, *self.options], log, "w")
        problem = problem or self.call(["bash", evaluate, cell, *common], log, "a")
        with self.lock:
            self.left -= 1
            if problem:
                self.failed.append(f"{cell}, seed {seed}")
                say(f"{cell}, seed {seed}: FAILED, all it said is in {log}:\n{problem}")
                return
            self.seconds.append(time.monotonic() - began)
            mean = sum(self.seconds) / len(self.seconds)
            say(
                f"{cell}, seed {seed}: {self.scores(cell, seed)}, {self.seconds[-1] / 60:.1f} min; {self.left} to go, "
                f"about {mean * self.left / self.jobs / 60:.0f} min"
            )
            self.write()

    def scores(self, cell: str, seed: int) -> str:
        """Of a run, in short."""
        found = Run(self.folder(cell, seed)).scores or {}
        return ", ".join(f"{name} {found[name]:.2f}" for name in ("bleu", "ppl") if name in found)

    def call(self, command: list[str], log: Path, mode: str) -> str:
        """Run a script; the end of what it printed if it fails, or nothing."""
        environment = dict(os.environ)
        if self.jobs > 1:  # models side by side, each on its share of the cores
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open(mode, encoding="utf-8") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False)
        if done.returncode == 0:
            return ""
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"    {line[:300]}" for line in lines) or f"    exit code {done.returncode}"

    def write(self) -> None:
        """The table as it is now, whole or not at all."""
        failed = [one.split(",")[0] for one in self.failed]
        path = self.out / "table.md"
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(markdown(TASKS[self.recipe.name], self.out, failed), encoding="utf-8")
        os.replace(beside, path)


def cells_of(text: Optional[str], task: Task) -> list[str]:
    """The cells asked for, or those of the paper; BadOutput if there is none of that name."""
    if text is None:
        return list(task.figures)
    asked = [name for name in text.split(",") if name]
    for name in asked:
        if name not in task.cells:
            raise BadOutput(f"--cells: there is no cell {name!r}; there are {', '.join(task.cells)}")
    return asked


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
    parser.add_argument("--cells", help="only these, with commas between them (those of the paper)")
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
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")]
        cells = cells_of(args.cells, TASKS[args.recipe.name])
        fine = Sweep(args.recipe, args.out, cells, seeds, args.jobs, [*options, *args.more]).run()
    except ValueError:
        sys.exit(f"{NAME}: --seeds {args.seeds}: whole numbers with commas between them")
    except (BadOutput, BadCorpus) as problem:
        sys.exit(f"{NAME}: {problem}")
    except OSError as error:
        sys.exit(f"{NAME}: {args.out} cannot be written: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(f"\n{NAME}: stopped; the same command goes on from here")
    print(f"\n{(args.out / 'table.md').read_text(encoding='utf-8')}", end="")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
