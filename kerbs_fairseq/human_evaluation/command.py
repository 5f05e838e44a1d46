"""kerbs-rate: the paper's human evaluation: write blinded rating sheets, and report the scores of filled ones.

kerbs-rate sheet --source test.src --system kerbs=kerbs.txt --system softmax=softmax.txt -o study
kerbs-rate report study
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Optional

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerbs_fairseq.human_evaluation import report as rating_report
from kerbs_fairseq.human_evaluation import scores as rating_scores
from kerbs_fairseq.human_evaluation import sheet as rating_sheet
from kerbs_fairseq.human_evaluation.cells import DELIMITERS
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console, visible

NAME = "kerbs-rate"
NONE = "–"


def arguments(argv: Optional[list[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sheet = commands.add_parser("sheet", help="write a study: a sheet for each rater, instructions, the key")
    sheet.add_argument("--source", type=Path, required=True, help="inputs, one per line")
    sheet.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="responses of a system, line by line; once for each system",
    )
    sheet.add_argument("--reference", type=Path, help="replies by people, shown beside the inputs and not rated")
    sheet.add_argument("--output", "-o", type=Path, required=True, help="new folder for the study")
    sheet.add_argument("--sets", type=int, default=50, help="inputs to choose at random (50)")
    sheet.add_argument("--raters", type=int, default=3, help="sheets to write (3)")
    sheet.add_argument("--seed", type=int, default=1, help="random seed (1)")
    sheet.add_argument("--delimiter", choices=DELIMITERS, default="comma", help="semicolon: where 1.5 is written 1,5")
    report = commands.add_parser("report", help="read the filled sheets of a study")
    report.add_argument("sheets", nargs="+", type=Path, help="the study's folder, or with --key the filled sheets")
    report.add_argument("--key", type=Path, help="the study's key.json (that of the folder)")
    report.add_argument("--test", metavar="NAME", help="system to test (kerbs if there is one, else the first)")
    report.add_argument(
        "--baseline", action="append", default=[], metavar="NAME", help="compare with this one only; repeatable"
    )
    report.add_argument("--partial", action="store_true", help="go on where scores are missing")
    report.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def systems_of(given: list[str]) -> dict[str, Path]:
    """Parse NAME=FILE options; return {name: file}."""
    systems: dict[str, Path] = {}
    for text in given:
        name, _, path = (part.strip() for part in text.partition("="))
        if not name or not path:
            raise UserError(f"--system {text}: write it as NAME=FILE")
        if name in systems:
            raise UserError(f"--system {name} is given twice")
        systems[name] = Path(path)
    if len(systems) < 2:
        raise UserError("a comparison needs two systems: give --system twice or more")
    return systems


def make_sheets(args: argparse.Namespace) -> None:
    """Run ``kerbs-rate sheet``."""
    for name in ("sets", "raters"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    systems = systems_of(args.system)
    key = rating_sheet.make(
        args.source,
        systems,
        args.output,
        reference=args.reference,
        sets=args.sets,
        raters=args.raters,
        seed=args.seed,
        delimiter=DELIMITERS[args.delimiter],
    )
    shared = sum(len(response["systems"]) > 1 for response in key["responses"].values()) // args.raters
    print(f"{args.output}: {args.sets} sets of {len(systems)} systems for {args.raters} raters (seed {args.seed})")
    if shared:
        print(f"{shared} responses are the same from two or more systems: shown once, the score counts for each")
    print("send each rater one rater_N.csv and INSTRUCTIONS.md; keep key.json from them")


def number(value: Optional[float], form: str = ".2f") -> str:
    """Format a figure; a dash if there is none."""
    return NONE if value is None else format(value, form)


def p_value(p: Optional[float]) -> str:
    """Format a p-value with four digits; <0.0001 if it is smaller."""
    return "<0.0001" if p is not None and p < 0.0001 else number(p, ".4f")


def table(*columns: str) -> Table:
    """Return an empty table; all columns but the first and ``test`` are right-aligned."""
    built = Table(box=None, pad_edge=False, show_header=any(columns))
    for place, column in enumerate(columns):
        built.add_column(Text(column), justify="left" if not place or column == "test" else "right")
    return built


def systems_table(report: dict[str, Any]) -> tuple[str, Table]:
    """Return title and table of the scores, with a row for each system."""
    raters = [f"rater {rater}" for rater in report["raters"]]
    title = f"Mean scores from 0 to 2: {report['sets']} sets, {len(raters)} raters, {report['scores']} scores"
    title += f", {report['missing']} missing" if report["missing"] else ""
    built = table("system", "mean", "sd", "95% interval", *raters, "0", "1", "2")
    for name, of in report["systems"].items():
        ends = NONE if of["interval_95"] is None else "{:.2f} to {:.2f}".format(*of["interval_95"])
        means = [number(value) for value in of["raters"].values()]
        counts = [str(count) for count in of["scores"].values()]
        built.add_row(Text(visible(name)), number(of["mean"]), number(of["standard_deviation"]), ends, *means, *counts)
    return title, built


def tests_table(tests: dict[str, Any]) -> tuple[str, Table]:
    """Return title and table of both tests against each other system."""
    title = f"One-tailed t-tests over sets, H1: {tests['system']} is better"
    built = table("against", "test", "sets", "difference", "t", "df", "p")
    for name, of in tests["against"].items():
        for kind, label in (("paired", "paired"), ("welch", "Welch (unpaired)")):
            result = of[kind]
            figures = [number(result["t"], ".3f"), number(result["df"], ".1f"), p_value(result["p"])]
            built.add_row(Text(visible(name)), label, str(of["sets"]), number(of["difference"], "+.2f"), *figures)
    return title, built


def notes(report: dict[str, Any]) -> list[str]:
    """Return the notes below the tables: why figures are missing, and how to read the others."""
    lines = ["sd and 95% interval (Student's t): over sets, of the mean over raters; 0, 1, 2: how often each was given"]
    if report["agreement"]["why_not"]:
        lines.append(f"agreement: {report['agreement']['why_not']}")
    if any(of["interval_95"] is None for of in report["systems"].values()):
        lines.append(f"{NONE}: no interval from one set, or where all sets have the same score")
    for name, of in report["tests"]["against"].items():
        for kind in ("paired", "welch"):
            if of[kind]["why_not"]:
                lines.append(f"{kind} test against {name}: {of[kind]['why_not']}")
    if len(report["tests"]["against"]) > 1:
        lines.append("p is not corrected for the number of comparisons")
    return lines


def agreement_table(of: dict[str, Any]) -> tuple[str, Table]:
    """Return title and table of the agreement between raters."""
    built = table("", "")
    built.add_row("pairs of scores that are equal", number(of["raw"], ".1%"))
    built.add_row("Fleiss' kappa", number(of["fleiss_kappa"]))
    built.add_row("Krippendorff's alpha (ordinal)", number(of["krippendorff_alpha_ordinal"]))
    return f"Agreement between raters ({of['raters']}) on responses with two or more scores ({of['responses']})", built


def show(report: dict[str, Any], terminal: Console) -> None:
    """Print the report."""
    for title, built in (
        systems_table(report),
        agreement_table(report["agreement"]),
        tests_table(report["tests"]),
    ):
        terminal.print(Text(visible(title), style="bold"))
        terminal.print(built, "")
    for line in notes(report):
        terminal.print(Text(visible(line)))


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = arguments(argv)
        if args.command == "sheet":
            make_sheets(args)
            return
        scores = rating_scores.load(args.sheets, args.key, args.partial)
        report = rating_report.report(scores, args.test, args.baseline)
        if args.json:
            print(json.dumps(report, indent=1))
        else:
            show(report, Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    main()
