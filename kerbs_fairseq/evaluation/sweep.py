"""kerbs-table: train and evaluate all cells of a recipe, or continue an interrupted table, and update the table.

With --lr-grid every cell is trained with each rate and the first seed, for --grid-updates updates or to the end, and
the rate with the lowest validation loss is used for all seeds. With --min-len-grid and --lenpen-grid the least length
of an output and then the length penalty are chosen by BLEU of the first seed on the validation set.
A cell that fails is reported, and the others continue. Progress and the time left are shown after every model.
"""

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from kerbs_fairseq.evaluation import grids
from kerbs_fairseq.evaluation.paper import TASKS, Task
from kerbs_fairseq.evaluation.runs import Run
from kerbs_fairseq.evaluation.scores import Perplexity
from kerbs_fairseq.evaluation.table import markdown
from kerbs_fairseq.runs import errors, files, logs
from kerbs_fairseq.runs import process as commands
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console, reason
from kerbs_fairseq.runs.outputs import SCORES

NAME = "kerbs-table"
LAST_LINES = 5


def say(text: str) -> None:
    """Print a line with the time, without buffering."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")  # in one write: several threads print
    sys.stdout.flush()


def show_validation(name: str, line: str) -> None:
    """Print the validation perplexity if a line of a training log has one."""
    record = logs.record_of(line)
    if record is not None and record.kind == logs.VALID and {"epoch", "ppl"} <= record.values.keys():
        say(f"{name}: epoch {record.values['epoch']:.0f}, valid ppl {record.values['ppl']:.2f}")


@dataclass
class Sweep:
    """The runs of one recipe."""

    recipe: Path
    out: Path
    cells: Sequence[str]
    seeds: Sequence[int]
    jobs: int
    scale: Sequence[str]  # --scale and --updates, for train.sh
    more: Sequence[str]  # for fairseq-train
    rates: Sequence[str] = ()
    trial: Sequence[str] = ()  # --updates for train.sh when a rate is tried; empty: as in a run
    searches: Mapping[str, Sequence[str]] = field(default_factory=dict)  # values to try, by option of evaluate.sh
    rate: dict[str, str] = field(default_factory=dict)  # by cell, once it is chosen
    search: dict[str, dict[str, str]] = field(default_factory=dict)  # the options that were chosen, by cell
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: set[commands.Process] = field(default_factory=set)

    def run(self) -> bool:
        """Train and evaluate everything that is missing; return whether all succeeded."""
        tried = [(cell, rate) for rate in self.rates for cell in self.cells]
        wanted = [(cell, seed) for seed in self.seeds for cell in self.cells]
        done = sum((self.folder(cell, seed) / SCORES).is_file() for cell, seed in wanted)
        trained = sum(grids.has_ended(self.tried(cell, rate)) for cell, rate in tried)
        self.left = len(wanted) + len(tried) - done - trained
        say(
            f"{len(wanted)} models{f' and {len(tried)} to choose rates' if tried else ''}, {done + trained} done "
            f"before, {self.jobs} at a time: {self.out}/runs"
        )
        self.side_by_side([partial(self.try_rate, *one) for one in tried])
        if self.rates:
            self.choose_rates()
            wanted = [(cell, seed) for cell, seed in wanted if cell in self.rate]
        first = len(self.cells) if self.searches else 0  # the first seed goes first: it chooses how to search
        for part in (wanted[:first], wanted[first:]):
            self.side_by_side([partial(self.one, *one) for one in part])
        self.write()
        return not self.failed

    def side_by_side(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks, ``jobs`` at a time."""
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in [pool.submit(task) for task in tasks]:
                future.result()
        except BaseException:  # above all Ctrl-C: training must not go on unseen
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(self.running):
                commands.stop(process)
            raise

    def folder(self, cell: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.out / "runs" / cell / f"seed_{seed}"

    def tried(self, cell: str, rate: str) -> Path:
        """Return the folder of the run in which a rate is tried."""
        return self.folder(grids.variant(cell, rate), self.seeds[0])

    def try_rate(self, cell: str, rate: str) -> None:
        """Train a cell with one of the rates; divergence is a result, not a failure."""
        folder, began, name = self.tried(cell, rate), time.monotonic(), f"{cell}, rate {rate}"
        done_before = grids.has_ended(folder)
        if (folder / grids.DIVERGED).is_file():
            return
        more = ["--lr", rate]
        problem = self.train(grids.variant(cell, rate), self.seeds[0], name, done_before, more, self.trial)
        if problem and grids.mark_if_diverged(folder):
            problem = ""
        self.report(name, problem, done_before, began, lambda: f"validation loss {grids.loss_of(folder):g}")

    def choose_rates(self) -> None:
        """Choose the best rate of each cell; a trial of full length becomes the run of the first seed."""
        for cell in self.cells:
            folders = {rate: self.tried(cell, rate) for rate in self.rates}
            try:
                rate, loss = grids.best_rate(folders)
                if not self.trial:
                    grids.adopt(folders[rate], self.folder(cell, self.seeds[0]))
            except UserError as problem:
                self.left -= len(self.seeds)
                if not any(name.startswith(f"{cell}, ") for name in self.failed):
                    self.failed.append(f"{cell}, rate")
                say(f"{cell}: no rate chosen: {problem}")
                continue
            self.rate[cell] = rate
            say(f"{cell}: rate {rate} (validation loss {loss}){grids.at_the_edge(rate, self.rates)}")

    def one(self, cell: str, seed: int) -> None:
        """Train and evaluate one model; if it is done, the scripts check that it has the same options."""
        began, name = time.monotonic(), f"{cell}, seed {seed}"
        done_before = (self.folder(cell, seed) / SCORES).is_file()
        rate = ["--lr", self.rate[cell]] if cell in self.rate else []
        problem = self.train(cell, seed, name, done_before, rate)
        problem = problem or self.evaluate(cell, seed, name)
        self.report(name, problem, done_before, began, lambda: self.scores(cell, seed))
        if not problem and not done_before:
            with self.lock:
                self.write()

    def train(
        self, cell: str, seed: int, name: str, done_before: bool, more: Sequence[str], trial: Sequence[str] = ()
    ) -> str:
        """Call train.sh; return the problem, or an empty text."""
        if not done_before:
            say(f"{name}: training")
        options = [*self.more, *more]
        options = [*self.scale, *trial, *(["--", *options] if options else [])]
        return self.call("train.sh", cell, seed, name, options)

    def evaluate(self, cell: str, seed: int, name: str) -> str:
        """Call evaluate.sh, with options that the first seed chooses; return the problem, or an empty text."""
        if self.searches and seed == self.seeds[0]:
            problem = self.choose_search(cell, seed, name)
            if problem:
                return problem
        if self.searches and cell not in self.search:
            return f"    nothing has been chosen for the beam search: seed {self.seeds[0]} failed"
        return self.call("evaluate.sh", cell, seed, name, words_of(self.search.get(cell, {})))

    def choose_search(self, cell: str, seed: int, name: str) -> str:
        """Choose the options of the beam search, one after the other; return the problem, or an empty text."""
        chosen: dict[str, str] = {}
        for option, values in self.searches.items():
            folders = {}
            for value in values:
                tried = {"--lenpen": "1", **chosen, option: value}
                problem = self.call("evaluate.sh", cell, seed, name, ["--subset", "valid", *words_of(tried)])
                if problem:
                    return problem
                folders[value] = grids.search_folder(self.folder(cell, seed), tried)
            try:
                chosen[option], bleu = grids.best_by_bleu(folders)
            except UserError as broken:
                return f"    {broken}"
            edge = grids.at_the_edge(chosen[option], values)
            say(f"{cell}: {option} {chosen[option]} (BLEU {bleu:.2f} on validation){edge}")
        self.search[cell] = chosen
        return ""

    def report(self, name: str, problem: str, done_before: bool, began: float, result: Callable[[], str]) -> None:
        """Print how a task ended, and the estimated time of the others."""
        with self.lock:
            self.left -= not done_before
            try:
                scores = "" if problem else result()
            except UserError as broken:
                problem = f"    {broken}"
            if problem:
                self.failed.append(name)
                say(f"{name}: FAILED:\n{problem}")
            elif not done_before:
                self.seconds.append(time.monotonic() - began)
                mean = sum(self.seconds) / len(self.seconds)
                say(
                    f"{name}: {scores}, {self.seconds[-1] / 60:.1f} min; {self.left} to go, about "
                    f"{mean * self.left / self.jobs / 60:.0f} min"
                )

    def scores(self, cell: str, seed: int) -> str:
        """Return the main scores of a run as text."""
        scores = Run(self.folder(cell, seed)).scores or {}
        return ", ".join(f"{name} {scores[name]:.2f}" for name in ("bleu", "ppl") if name in scores)

    def call(self, script: str, cell: str, seed: int, name: str, options: Sequence[str]) -> str:
        """Run a script and print each validation; return the end of its output if it fails, or an empty text."""
        command = ["bash", str(self.recipe / script), cell, "--out", str(self.out), "--seed", str(seed), *options]
        log = self.folder(cell, seed) / "recipe.log"
        environment = dict(os.environ)
        if self.jobs > 1:  # models in parallel, each on its share of the cores
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        try:
            watch = partial(show_validation, name)
            code, last = commands.logged(command, log, watch, environment, self.running, append=True)
        except OSError as error:
            return f"    {error}"
        if code == 0:
            return ""
        shown = [f"    {line.rstrip()[:400]}" for line in last[-LAST_LINES:]]
        return "\n".join([*shown, f"    exit code {code}; see {log}"])

    def write(self) -> None:
        """Write the current table, completely or not at all."""
        try:
            text = markdown(self.recipe.name, self.out, self.failed)
        except UserError as problem:  # a broken folder of another run must not stop this one
            say(f"no table: {problem}")
        else:
            files.write(self.out / "table.md", text)


def words_of(options: dict[str, str]) -> list[str]:
    """Return options and their values as words of a command."""
    return [word for option in sorted(options) for word in (option, options[option])]


def cells_of(text: Optional[str], task: Task) -> list[str]:
    """Return the cells asked for, or the paper's; a model stands for all its cells; UserError for unknown names."""
    if text is None:
        return list(task.figures)
    asked = []
    for name in text.split(","):
        asked += [cell for cell in task.cells if cell.startswith(f"{name}-")] if name in task.models else [name]
    asked = [name for name in asked if name]
    for name in asked:
        if not task.has(name):
            raise UserError(
                f"--cells: there is no cell {name!r}; there are {', '.join(task.cells)}, and variants of them, "
                f"{task.cells[0]}+NAME, with letters, digits, '.', '_' and '-' in the name"
            )
    return list(dict.fromkeys(asked))


def seeds_of(text: str) -> list[int]:
    """Return the distinct seeds of a list such as 1,2,3."""
    if not re.fullmatch(r"[1-9]\d{0,8}(,[1-9]\d{0,8})*", text):
        raise UserError(f"--seeds {text}: whole numbers from 1 on with commas between them")
    return list(dict.fromkeys(int(seed) for seed in text.split(",")))


def stop(*_: object) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


def arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog=NAME,
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        epilog="What stands behind -- goes to fairseq-train, the same for all cells.",
    )
    parser.add_argument("recipe", type=Path, help="folder of the recipe, such as recipes/mt_iwslt16")
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare.sh was given")
    parser.add_argument("--seeds", default="1,2,3", help="seeds of the training (1,2,3)")
    parser.add_argument(
        "--cells",
        help="only these, with commas between them (those of the paper); MODEL: all its cells; CELL+NAME: a variant",
    )
    parser.add_argument("--lr-grid", help="rates to try with the first seed, such as 0.001,0.002,0.004")
    parser.add_argument("--grid-updates", help="length of the trainings with which rates are tried (that of a run)")
    parser.add_argument("--lenpen-grid", help="length penalties to try on the validation set, such as 0.6,1,1.4")
    parser.add_argument("--min-len-grid", help="the same for the least number of pieces of an output, such as 1,8,16")
    parser.add_argument("--jobs", type=int, default=1, help="models trained side by side (1)")
    parser.add_argument("--scale", help="paper or small, for train.sh")
    parser.add_argument("--updates", help="length of the training, for train.sh")
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:end])
    args.more = given[end + 1 :]
    return args


def sweep_of(args: argparse.Namespace) -> Sweep:
    """Return the runs that are asked for; UserError for arguments that do not fit."""
    if args.recipe.name not in TASKS or not (args.recipe / "train.sh").is_file():
        raise UserError(f"{args.recipe} is not a recipe; there are {', '.join(TASKS)}")
    if not (args.out / "binary").is_dir():
        raise UserError(f"{args.out} has no data: run {args.recipe.name}/prepare.sh --out {args.out} first")
    if args.jobs < 1:
        raise UserError(f"--jobs {args.jobs}: at least 1")
    scale = [
        part for name in ("scale", "updates") if getattr(args, name) for part in (f"--{name}", getattr(args, name))
    ]
    task = TASKS[args.recipe.name]
    rates = grids.values_of(args.lr_grid, "--lr-grid")
    min_lens = grids.values_of(args.min_len_grid, "--min-len-grid", whole=True)
    lenpens = grids.values_of(args.lenpen_grid, "--lenpen-grid")
    searches = {option: tried for option, tried in (("--min-len", min_lens), ("--lenpen", lenpens)) if tried}
    if searches and isinstance(task.scorer, Perplexity):
        raise UserError(f"{next(iter(searches))}-grid: a language model is not searched with beams")
    if rates and "--lr" in args.more:
        raise UserError("--lr-grid and -- --lr cannot be combined")
    if args.grid_updates and not rates:
        raise UserError("--grid-updates goes with --lr-grid")
    trial = ["--updates", args.grid_updates] if args.grid_updates else []
    seeds, cells = seeds_of(args.seeds), cells_of(args.cells, task)
    return Sweep(args.recipe, args.out, cells, seeds, args.jobs, scale, args.more, rates, trial, searches)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = arguments(argv)
        args.recipe = Path(os.path.abspath(args.recipe))
        sweep = sweep_of(args)
        signal.signal(signal.SIGTERM, stop)
        try:
            fine = sweep.run()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(f"{args.out} cannot be written: {reason(error)}") from None
        except KeyboardInterrupt:
            errors.say(f"\n{NAME}: stopped; the same command goes on from here")
            raise
        table = args.out / "table.md"
        print(f"\n{table.read_text(encoding='utf-8')}" if table.is_file() else "", end="")
        sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
