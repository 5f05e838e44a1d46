"""``kerbs-evaluate``: scores of a trained model, comparisons of several, and the paper's table.

The recipes call it after fairseq-generate or fairseq-eval-lm; OUT is the folder that a recipe works in.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.paper import TASKS, Task
from kerbs_fairseq.evaluation.runs import Run, evaluate_bleu, evaluate_ppl, references
from kerbs_fairseq.evaluation.scores import Bleu
from kerbs_fairseq.evaluation.table import compare, markdown
from kerbs_fairseq.runs.errors import UserError as BadOutput
from kerbs_fairseq.runs.files import read_text

NAME = "kerbs-evaluate"


def score(args: argparse.Namespace) -> None:
    """Score the outputs of one model."""
    run = Run(args.run)
    if not run.folder.is_dir():
        raise BadOutput(f"{run.folder} is no folder: train the model first")
    scorer = TASKS[args.task].scorer
    found = evaluate_bleu(run, args.out, scorer.order) if isinstance(scorer, Bleu) else evaluate_ppl(run, args.out)
    print(f"{run.folder}: {json.dumps(found)}")


def compare_runs(args: argparse.Namespace) -> None:
    """Each model against the first, and some of their outputs side by side."""
    task, wanted = TASKS[args.task], references(args.out)
    runs = [Run(path) for path in args.runs]
    for run in runs:
        if run.scores is None:
            raise BadOutput(f"{run.folder} has not been evaluated: run evaluate.sh {run.cell} first")
    baseline = runs[0]
    name = "ppl" if task.measure == "PPL" else "bleu"
    for run in runs:
        print(f"{run.cell} (seed {run.seed}): {task.measure} {(run.scores or {})[name]:.2f}")
    for run in runs[1:]:
        found = compare(task, [run], [Run(baseline.folder)], wanted) if run.seed == baseline.seed else None
        if found is None:
            print(f"{run.cell} has another seed than {baseline.cell}: not compared")
            continue
        print(
            f"{run.cell} against {baseline.cell}: {found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}], "
            f"one-sided p {found.p:.3f} (paired bootstrap)"
        )
    if task.measure != "PPL":
        samples(args, task, runs, wanted)


def samples(args: argparse.Namespace, task: Task, runs: Sequence[Run], wanted: Sequence[str]) -> None:
    """Some outputs side by side, drawn at random from those that differ."""
    corpus = json.loads(read_text(args.out / "text" / "corpus.json"))
    sources = read_text(args.out / "text" / f"test.{corpus['sides'][0]}").splitlines()
    outputs = [run.output() for run in runs]
    differ = [i for i in range(len(wanted)) if len({output[i] for output in outputs}) > 1]
    chosen = random.Random(args.seed).sample(differ, min(args.samples, len(differ)))
    width = max(len("reference"), *(len(run.cell) for run in runs))
    for i in sorted(chosen):
        rows = [("source", sources[i]), ("reference", wanted[i])]
        rows += [(run.cell, output[i]) for run, output in zip(runs, outputs)]
        print()
        for what, text in rows:
            print(f"  {what:<{width}}  {text}")


def table(args: argparse.Namespace) -> None:
    """What has been evaluated so far."""
    print(markdown(TASKS[args.task], args.out), end="")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = result.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("score", score, "score the outputs of one model; writes scores.json beside it"),
        ("compare", compare_runs, "compare models with the first one: paired bootstrap, outputs side by side"),
        ("table", table, "the paper's table with our figures, as Markdown"),
    ):
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("task", choices=sorted(TASKS), help="recipe")
        made.add_argument("out", type=Path, help="folder that the recipe works in")
        made.set_defaults(run_command=run)
        if name == "score":
            made.add_argument("run", type=Path, help="folder of the model, OUT/runs/CELL/seed_N")
        if name == "compare":
            made.add_argument("runs", type=Path, nargs="+", help="folders of models, the baseline first")
            made.add_argument("--samples", type=int, default=5, help="sentences to show side by side (5)")
            made.add_argument("--seed", type=int, default=1, help="of the choice of sentences (1)")
    return result


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    args = parser().parse_args(argv)
    try:
        args.run_command(args)
    except BadOutput as problem:
        sys.exit(f"{NAME}: {problem}")


if __name__ == "__main__":
    main()
