"""kerbs-inspect CHECKPOINT: print what a trained KerBS model has learned, as text or JSON.

Words by number of senses (Table 5 of the paper), words that gained and lost most senses, words with the largest and
smallest θ (Figure 3), idle senses; with --word the senses of a word, and with --data their contexts.
"""

import argparse
import contextlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerbs_fairseq.inspection import findings
from kerbs_fairseq.inspection.learned import Learned, load
from kerbs_fairseq.inspection.pieces import highlighted, mark_of
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console, visible
from kerbs_fairseq.runs.logs import IDLE_SHARE

NAME = "kerbs-inspect"
BAR = 20  # characters of the longest bar


def arguments(argv: Optional[list[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="checkpoint of a model trained with --arch kerbs_…")
    parser.add_argument("--data", type=Path, help="folder that fairseq-preprocess wrote: for names and contexts")
    parser.add_argument("--split", default="valid", help="part of --data that contexts come from (valid)")
    parser.add_argument("--word", action="append", default=[], help="show this word in detail; repeatable")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME=WORD,WORD,…", help="θ of a group of words; repeatable"
    )
    parser.add_argument("--contexts", type=int, default=3, help="contexts to show for each sense (3)")
    parser.add_argument("--samples", type=int, default=8, help="words to show in each list (8)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_code_options(parser)
    return parser.parse_args(argv)


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that control whether code of a checkpoint is run."""
    parser.add_argument("--user-dir", type=Path, help="code of a model of your own, as in training")
    parser.add_argument(
        "--trust", action="store_true",
        help="load all that the checkpoint holds, and import its --user-dir: both can run code",
    )  # fmt: skip


def inspect(args: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was asked for, as plain data."""
    for name in ("contexts", "samples"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    model = load(args.checkpoint, args.data, args.trust)
    result = findings.everything(model, args.samples)
    result["groups"] = {}
    for text in args.group:
        name, is_there, words = text.partition("=")
        if not is_there or not words:
            raise UserError(f"--group {text}: write it as NAME=WORD,WORD")
        result["groups"][name] = findings.group(model, words.split(","))
    result["words"] = [findings.word_in_detail(model, word) for word in args.word]
    if args.data and args.word:
        add_contexts(result["words"], model, args)
    return result


def add_contexts(words: list[dict[str, Any]], model: Learned, args: argparse.Namespace) -> None:
    """Add to each sense the sentences in which it is the most likely one, and how often it was."""
    from kerbs_fairseq.inspection.contexts import import_code, occurrences  # loads fairseq and all its models

    import_code(model.code, args.user_dir, args.trust)
    at = {model.find(word["word"]): word for word in words}
    senses = {sense["sense"]: sense for word in words for sense in word["senses"]}
    mark = mark_of(model.words)
    for sense in senses.values():
        sense["contexts"], sense["meant"] = [], 0
    for occurrence in occurrences(args.checkpoint, args.data, args.split, list(at)):
        sense = senses[occurrence.sense]
        sense["meant"] += 1
        sense["contexts"].append(
            {
                "probability": occurrence.probability,
                "text": highlighted(occurrence.sentence, occurrence.position, mark),
            }
        )
    for sense in senses.values():
        sense["contexts"] = sorted(sense["contexts"], key=lambda c: -c["probability"])[: args.contexts]


# --- the terminal


def table(title: str, *columns: str) -> Table:
    """Return an empty table; columns whose names begin with > are right-aligned."""
    built = Table(title=title, box=None, pad_edge=False)
    for column in columns:
        built.add_column(column.strip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return built


def row(built: Table, *cells: object) -> None:
    """Add a row: floats with three digits, control characters made visible."""
    texts = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
    built.add_row(*(Text("\n".join(map(visible, text.split("\n")))) for text in texts))


def show(result: dict[str, Any], terminal: Console) -> None:
    """Print all tables."""
    model = result["model"]
    terminal.print(
        f"{model['senses']} senses of {model['words']} words, {model['features']} features, kernel {model['kernel']}, "
        f"{model['updates']} updates, {model['moves']} moves", highlight=False,
    )  # fmt: skip
    if not model["named"]:
        terminal.print("No dictionary found: words are shown by number. --data FOLDER names them.", style="yellow")
    elif not model["dictionary_checked"]:
        terminal.print("Whether this is the dictionary of the training: unknown (an old checkpoint).", style="yellow")
    if not model["start_known"]:
        terminal.print("Senses per word at the start: unknown (an old checkpoint).", style="yellow")
    tables = [
        senses_table(result),
        *movers_tables(result),
        *theta_tables(result),
        *bias_tables(result),
        idle_table(result),
    ]
    for one in tables + [word_table(word) for word in result["words"]]:
        title, one.title = one.title, None  # a title of the table itself would be wrapped to its width
        terminal.print()
        terminal.print(Text(visible(title), style="bold"))
        terminal.print(one)


def senses_table(result: dict[str, Any]) -> Table:
    """Return the table of words by number of senses."""
    built = table("Senses per word", ">senses", ">words", "", "such as")
    most = max(1, *(line["words"] for line in result["senses_per_word"]))
    for line in result["senses_per_word"]:
        bar = ("█" if "utf" in (sys.stdout.encoding or "utf").lower() else "#") * math.ceil(BAR * line["words"] / most)
        row(built, line["senses"], line["words"], bar, " ".join(line["samples"]))
    return built


def movers_tables(result: dict[str, Any]) -> list[Table]:
    """Return the table of words that gained and lost senses, if there are any."""
    built = table("Most moved", "", "word", ">senses at the start", ">now")
    for what, lines in result["movers"].items():
        for line in lines:
            row(built, what, line["word"], line["from"], line["to"])
    return [built] if built.row_count else []


def theta_tables(result: dict[str, Any]) -> list[Table]:
    """Return the tables of θ: quantiles, extremes, groups."""
    theta = result["theta"]
    groups = table("Groups", "group", ">words", ">θ", ">spread", ">senses per word")
    for name, line in result["groups"].items():
        row(groups, name, len(line["words"]), line["theta"], line["spread"], line["senses"])
    of_groups = [groups] if result["groups"] else []
    if not theta:
        return of_groups
    quantiles = table("θ of all senses", *(f">{name}" for name in theta["quantiles"]))
    row(quantiles, *theta["quantiles"].values())
    extremes = table("Words by θ (a larger θ is a wider kernel)", "largest", ">θ", "smallest", ">θ")
    for a, b in zip(theta["largest"], theta["smallest"]):
        row(extremes, a["word"], a["theta"], b["word"], b["theta"])
    return [quantiles, extremes, *of_groups]


def bias_tables(result: dict[str, Any]) -> list[Table]:
    """Return the table of quantiles of the bias, if the model has one."""
    if not result["bias"]:
        return []
    quantiles = table("Bias of all senses", *(f">{name}" for name in result["bias"]["quantiles"]))
    row(quantiles, *result["bias"]["quantiles"].values())
    return [quantiles]


def idle_table(result: dict[str, Any]) -> Table:
    """Return the table of idle senses."""
    idle = result["idle"]
    title = (
        f"Idle senses: {idle['senses']} ({idle['share']:.1%}), with less than {IDLE_SHARE:.0%} of their word's usage"
    )
    built = table(title, "word", ">idle", ">of")
    for line in idle["words"]:
        row(built, line["word"], line["idle"], line["of"])
    return built


def word_table(word: dict[str, Any]) -> Table:
    """Return the table of the senses of a word."""
    count = "" if word["count"] is None else f", {word['count']} times in training"
    columns = [">sense", ">θ", ">bias", ">share of usage", ">length", "nearest senses of other words"]
    with_contexts = any("contexts" in sense for sense in word["senses"])
    built = table(f"{word['word']}{count}", *columns, *([">meant", "where"] if with_contexts else []))
    for sense in word["senses"]:
        near = ", ".join(f"{other['word']} {other['cosine']:.2f}" for other in sense["nearest"])
        cells = [
            sense["sense"],
            sense["theta"],
            "" if sense["bias"] is None else sense["bias"],
            sense["share"],
            sense["length"],
            near,
        ]
        if with_contexts:
            cells += [sense["meant"], "\n".join(c["text"] for c in sense["contexts"])]
        row(built, *cells)
    return built


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence logs and warnings of fairseq and torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = arguments(argv)
        with quiet():
            result = inspect(args)
        if args.json:
            print(json.dumps(findings.without_nan(result), indent=1))
        else:
            show(result, Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    main()
