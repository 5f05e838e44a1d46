"""kerbs-report CHECKPOINT… -o FOLDER: write a page with plots of what a trained KerBS model has learned.

One self-contained HTML file, and the same plots as PNG and SVG files. With --data the page includes contexts of words
by sense, their spread, and examples. Several checkpoints are compared: softmax, MoS, KerBS.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kerbs_fairseq.inspection.command import add_code_options, quiet
from kerbs_fairseq.inspection.learned import SPECIAL, Learned
from kerbs_fairseq.report.album import album
from kerbs_fairseq.report.drawing import save, style
from kerbs_fairseq.report.gather import Run, gather
from kerbs_fairseq.report.page import page
from kerbs_fairseq.report.spaces import FEWEST, Contexts, candidates, chosen, read_contexts
from kerbs_fairseq.report.vocabulary import WITH_NEAREST, vocabulary
from kerbs_fairseq.runs import files
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console

NAME = "kerbs-report"
PAGE = "index.html"
Step = Callable[[str], Callable[[float], None]]  # begins a step; returns a function that takes the finished part of it


def arguments(argv: Optional[list[str]]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+", metavar="CHECKPOINT", help="one, or several to compare")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the page and its figures")
    parser.add_argument("--data", type=Path, help="folder that fairseq-preprocess wrote: for names and contexts")
    parser.add_argument("--split", default="valid", help="part of --data that contexts come from (valid)")
    parser.add_argument("--tokens", type=int, default=15000, help="tokens of the split to read (15000)")
    parser.add_argument("--word", action="append", default=[], help="plot the contexts of this word; repeatable")
    parser.add_argument("--words", type=int, default=6, help="words to choose if there is no --word (6)")
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE",
        help="log of fairseq-train, once for each checkpoint in their order (train.log beside it)",
    )  # fmt: skip
    parser.add_argument(
        "--move-log", type=Path, metavar="FILE", help="table of --kerbs-move-log (where training wrote it)"
    )
    parser.add_argument("--title", help="title of the page")
    add_code_options(parser)
    args = parser.parse_args(argv)
    for name in ("tokens", "words"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: at least 1")
    return args


def report(args: argparse.Namespace, begin: Step) -> Path:
    """Write the report; return the path of its page."""
    with files.updating(args.output) as folder:  # first, so that a folder that cannot be written is an error at once
        write(args, begin, folder)
    return args.output / PAGE


def write(args: argparse.Namespace, begin: Step, folder: Path) -> None:
    """Write all files of the report into ``folder``."""
    begin("reading checkpoints")
    runs = gather(args.checkpoints, args.data, args.log, args.move_log, args.trust)
    main = next((run for run in runs if run.learned is not None), None)
    notes = [note for run in runs for note in run.notes]
    contexts: Optional[Contexts] = None
    words: Sequence[int] = []
    data: dict[str, object] = {}
    if main is not None and main.learned is not None:
        contexts, words = contexts_of(main, main.learned, args, begin)
        if contexts is None:
            notes.append(
                "What needs sentences: contexts of words by sense (Figure 1), examples, θ against the spread of "
                "contexts. --data DIR, the folder that fairseq-preprocess wrote, brings them."
            )
        else:
            if not contexts.whole:
                notes.append(
                    f"Contexts are from {contexts.tokens:,} tokens of {args.split}, not all: --tokens reads more."
                )
            notes += [
                f"Contexts of {main.learned.words[word]}: a plot needs {FEWEST}, and there are "
                f"{int(contexts.times[word])} in {contexts.tokens:,} tokens of {args.split}. "
                f"{'Another --split' if contexts.whole else '--tokens'} may have more."
                for word in words
                if contexts.times[word] < FEWEST
            ]
        data = searchable(main.learned, contexts, words, args.split, begin)
        if main.learned.n_words > WITH_NEAREST + SPECIAL:
            notes.append(f"Nearest senses in the search: of the {WITH_NEAREST:,} most frequent words only.")
    pictures = []
    done = begin("drawing")
    title = args.title or (f"What {main.name} has learned" if main else "Models compared")
    (folder / "figures").mkdir()
    with style():
        for number, (where, picture) in enumerate(album(runs, contexts, words), 1):
            save(picture, folder / "figures")
            pictures.append((where, picture))
            done(number / (number + 3))
        text = page(title, runs, main, pictures, data, notes)
    (folder / PAGE).write_text(text, encoding="utf-8", errors="replace")
    done(1.0)


def contexts_of(
    run: Run, model: Learned, args: argparse.Namespace, begin: Step
) -> tuple[Optional[Contexts], Sequence[int]]:
    """Return the contexts of words in the data, if there are any, and the words to plot: asked for, or chosen."""
    asked = list(dict.fromkeys(model.find(word) for word in args.word))
    special = [model.words[word] for word in asked if word < SPECIAL]
    if special:
        raise UserError(f"--word {special[0]}: a special symbol has one sense, and nothing to show")
    good = asked or candidates(model)
    if args.data is None:
        return None, asked or good[: args.words]
    from kerbs_fairseq.inspection.contexts import import_code  # loads fairseq and all its models

    import_code(model.code, args.user_dir, args.trust)
    contexts = read_contexts(
        run.path, args.data, args.split, model, good, args.tokens, begin(f"reading {args.split} with the model")
    )
    return contexts, asked or chosen(contexts, good, args.words)


def searchable(
    model: Learned, contexts: Optional[Contexts], words: Sequence[int], split: str, begin: Step
) -> dict[str, object]:
    """Return the data of the page's search, with the words that it shows first."""
    data = vocabulary(model, contexts, words, begin("comparing senses"))
    place = {word: i for i, (word, _, _) in enumerate(data["words"])}
    first = [place[model.words[word]] for word in words]
    return {**data, "chosen": first, "theta": model.kernel != "dot", "split": split}


class Bars:
    """Progress on stderr: bars in a terminal, lines elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.lines = not console.is_terminal
        self.finish: Callable[[float], None] = lambda part: None

    def begin(self, what: str) -> Callable[[float], None]:
        """Finish the previous step and begin a new one; return the function that reports its progress."""
        self.finish(1.0)
        if self.lines:
            print(f"{NAME}: {what}", file=sys.stderr, flush=True)
        task = self.progress.add_task(what, total=1.0)
        self.finish = lambda part: self.progress.update(task, completed=part)
        return self.finish


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args, bars = arguments(argv), Bars()
        with bars.progress, quiet():
            path = report(args, bars.begin)
            bars.finish(1.0)
        print(path)


if __name__ == "__main__":
    main()
