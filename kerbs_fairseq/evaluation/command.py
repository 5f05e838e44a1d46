"""kerbs-evaluate: score trained models, compare them, and write the tables of results and of the documentation.

The recipes call it after fairseq-generate or fairseq-eval-lm; OUT is the working folder of a recipe.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.kept import SUFFIX, keep, restore
from kerbs_fairseq.evaluation.pages import fill
from kerbs_fairseq.evaluation.paper import TASKS, VARIANT, Task
from kerbs_fairseq.evaluation.results import compare, gather, measure_of, read_results, write_results
from kerbs_fairseq.evaluation.runs import SUBSETS, Run, evaluate_bleu, evaluate_ppl, references, sides, statistics
from kerbs_fairseq.evaluation.scores import Bleu, same_length
from kerbs_fairseq.evaluation.table import markdown
from kerbs_fairseq.evaluation.words import groups_of_pieces
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console
from kerbs_fairseq.runs.files import read_text

NAME = "kerbs-evaluate"


def score(args: argparse.Namespace) -> None:
    """Score the outputs of one model."""
    run = Run(args.run)
    if not run.folder.is_dir():
        raise UserError(f"{run.folder} is not a directory: train the model first")
    scorer = TASKS[args.task].scorer
    if isinstance(scorer, Bleu):
        scores = evaluate_bleu(run, args.out, scorer.order, args.subset)
    else:
        scores = evaluate_ppl(run, args.out)
    print(f"{run.folder}: {json.dumps(scores)}")


def compare_runs(args: argparse.Namespace) -> None:
    """Compare each model with the first, and print some of their outputs side by side."""
    task, wanted = TASKS[args.task], references(args.out)
    runs = [Run(path) for path in args.runs]
    for run in runs:
        if run.scores is None:
            raise UserError(f"{run.folder} has not been evaluated: run evaluate.sh {run.cell} first")
    baseline = runs[0]
    for run in runs:
        print(f"{run.cell} (seed {run.seed}): {task.measure} {run.score(measure_of(task)):.2f}")
    of_baseline = statistics(baseline, task.scorer, wanted)
    for run in runs[1:]:
        if run.seed != baseline.seed:
            print(f"{run.cell} has another seed than {baseline.cell}: not compared")
            continue
        comparison = compare(task, [statistics(run, task.scorer, wanted)], [of_baseline])
        print(
            f"{run.cell} against {baseline.cell}: {comparison.difference:+.2f} "
            f"[{comparison.low:+.2f}, {comparison.high:+.2f}], one-sided p {comparison.p:.3f} (paired bootstrap)"
        )
    if task.measure != "PPL":
        samples(args, task, runs, wanted)


def samples(args: argparse.Namespace, task: Task, runs: Sequence[Run], wanted: Sequence[str]) -> None:
    """Print some outputs side by side, drawn at random from those that differ."""
    sources = read_text(args.out / "text" / f"test.{sides(args.out)[0]}").splitlines()
    same_length(sources, wanted)
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


def words(args: argparse.Namespace) -> None:
    """Print the perplexity of frequent and rare pieces, and of those with few and many senses."""
    print(groups_of_pieces(args.out, [Run(path) for path in args.runs]), end="")


def table(args: argparse.Namespace) -> None:
    """Print the table of all evaluated models."""
    print(markdown(args.task, args.out), end="")


def collect(args: argparse.Namespace) -> None:
    """Write the results of a recipe to a JSON file, and its runs to an archive beside it."""
    name = args.name or args.out.name
    if not VARIANT.fullmatch(name):
        raise UserError(f"--name {name}: letters, digits, '.', '_' and '-' are possible")
    results = gather(name, args.task, args.out, args.corpus or "")
    if not results["cells"]:
        raise UserError(f"{args.out} has no evaluated models")
    path = write_results(results, args.to)
    print(f"{path}: {sum(len(cell['seeds']) for cell in results['cells'].values())} models")
    keep(args.out, args.to / f"{name}{SUFFIX}")


def restore_runs(args: argparse.Namespace) -> None:
    """Restore finished runs of another machine, so that kerbs-table continues after them."""
    if not args.out.is_dir():
        raise UserError(f"{args.out} is not a directory: run the recipe's prepare.sh --out {args.out} first")
    restored, before = restore(args.archive, args.out)
    print(f"{args.out}/runs: {restored} runs restored, without their models; {before} were there before")


def pages(args: argparse.Namespace) -> None:
    """Update or check the tables of the documentation, from the JSON files."""
    results = read_results(args.results)
    old = [path for path in args.pages if fill(path, results, write=not args.check)]
    for path in old:
        print(f"{path}: {'differs from' if args.check else 'now has'} the tables of {args.results}")
    if args.check and old:
        raise UserError("run make results-table")


def count(text: str) -> int:
    """Parse a non-negative integer, for argparse."""
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"{text}: at least 0")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = result.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("score", score, "score the outputs of one model; writes scores.json beside it"),
        ("compare", compare_runs, "compare models with the first one: paired bootstrap, outputs side by side"),
        ("table", table, "the table of all evaluated models, as Markdown"),
        (
            "collect",
            collect,
            "write the results of all evaluated models into a JSON file, their outputs beside it",
        ),
    ):
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("task", choices=sorted(TASKS), help="name of the recipe")
        made.add_argument("out", type=Path, help="working folder of the recipe, its --out")
        made.set_defaults(run_command=run)
        if name == "score":
            made.add_argument("run", type=Path, help="folder with the outputs, OUT/runs/CELL/seed_N")
            made.add_argument("--subset", choices=SUBSETS, default="test", help="data set that was translated (test)")
        if name == "compare":
            made.add_argument("runs", type=Path, nargs="+", help="folders of models, the baseline first")
            made.add_argument("--samples", type=count, default=5, help="sentences to show side by side (5)")
            made.add_argument("--seed", type=int, default=1, help="random seed for the choice of sentences (1)")
        if name == "collect":
            made.add_argument("--to", type=Path, default=Path("docs/results"), help="folder of the file (docs/results)")
            made.add_argument("--name", help="name of the file, without .json (that of OUT)")
            made.add_argument("--corpus", help="name of the corpus in tables (that of the paper)")
    text = "perplexity of a language model's pieces by their frequency and by their number of senses, as Markdown"
    made = commands.add_parser("words", help=text, description=text)
    made.add_argument("out", type=Path, help="working folder of the recipe, its --out")
    made.add_argument(
        "runs", type=Path, nargs="+", help="folders of evaluated models; the others relative to the first"
    )
    made.set_defaults(run_command=words)
    text = "put runs that `collect` has kept below OUT, so that kerbs-table continues after them"
    made = commands.add_parser("restore", help=text, description=text)
    made.add_argument("archive", type=Path, help=f"such as docs/results/lm_1b{SUFFIX}")
    made.add_argument("out", type=Path, help="folder that the recipe works in, with the same data prepared")
    made.set_defaults(run_command=restore_runs)
    text = "bring the tables of pages up to date, between <!-- results: NAME --> and <!-- end of results -->"
    made = commands.add_parser("pages", help=text, description=text)
    made.add_argument("pages", type=Path, nargs="+", help="files in Markdown")
    made.add_argument("--results", type=Path, default=Path("docs/results"), help="folder of JSON files (docs/results)")
    made.add_argument("--check", action="store_true", help="change nothing; fail if a table is not up to date")
    made.set_defaults(run_command=pages)
    return result


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = parser().parse_args(argv)
        args.run_command(args)


if __name__ == "__main__":
    main()
