"""kerbs-corpus: convert a corpus as published to text, and text to subwords.

Each subcommand writes one new folder, completely or not at all. The recipes call them in turn.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from kerbs_fairseq.corpora import pieces
from kerbs_fairseq.corpora.archives import unpack
from kerbs_fairseq.corpora.dialogs import read_dialogs
from kerbs_fairseq.corpora.lines import write_lines
from kerbs_fairseq.corpora.pairs import Splits, read_iwslt, read_parallel, read_tabbed, tabbed_file
from kerbs_fairseq.corpora.sentences import read_sentences
from kerbs_fairseq.corpora.split import split_by_sentence, tidy, without_overlap
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console
from kerbs_fairseq.runs.files import new_folder

NAME = "kerbs-corpus"


def read_pairs(args: argparse.Namespace) -> Splits:
    """Read a parallel corpus in any of the supported formats."""
    folder, source, target = args.raw, args.source, args.target
    pair = f"{source}-{target}"
    for iwslt in (folder, folder / pair):
        if any(iwslt.glob(f"train.tags.{pair}.*")):
            return read_iwslt(iwslt, source, target, args.valid_set, args.test_set)
    if (folder / f"train.{source}").is_file():
        return read_parallel(folder, source, target)
    tabbed = tabbed_file(folder)
    if tabbed is not None:
        columns = args.columns.split(",")
        if sorted(columns) != sorted((source, target)):
            raise UserError(f"--columns {args.columns}: the names of the first two columns, {source},{target} or back")
        pairs = read_tabbed(tabbed, swap=columns[0] == target)
        return split_by_sentence(pairs, args.valid, args.test, args.seed)
    raise UserError(
        f"{folder} has none of: train.tags.{pair}.{source} (IWSLT), train.{source} with train.{target}, "
        "one file with tabs (Tatoeba)"
    )


def write_pairs(splits: Splits, names: tuple[str, str], out: Path) -> dict[str, Any]:
    """Write both sides of every part to the new folder ``out``; return a summary."""
    counts = {part: len(pairs) for part, pairs in splits.parts().items()}
    summary = {"sides": list(names), "pairs": counts, "left_out": splits.left_out}
    with new_folder(out) as folder:
        for part, pairs in splits.parts().items():
            for at, side in enumerate(names):
                write_lines(folder / f"{part}.{side}", (pair[at] for pair in pairs))
        (folder / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def pairs_command(args: argparse.Namespace) -> dict[str, Any]:
    """Write parallel text."""
    return write_pairs(tidy(read_pairs(args), args.max_words, args.most), (args.source, args.target), args.out)


def dialog_command(args: argparse.Namespace) -> dict[str, Any]:
    """Write pairs of a turn and its answer."""
    splits = tidy(without_overlap(read_dialogs(args.raw)), args.max_words, args.most)
    return write_pairs(splits, ("src", "tgt"), args.out)


def sentences_command(args: argparse.Namespace) -> dict[str, Any]:
    """Write text for a language model."""
    parts = read_sentences(args.raw, args.cut, args.seed, args.max_words)
    summary = {"sides": ["txt"], "sentences": {part: len(lines) for part, lines in parts.items()}}
    with new_folder(args.out) as folder:
        for part, lines in parts.items():
            write_lines(folder / f"{part}.txt", lines)
        (folder / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def pieces_command(args: argparse.Namespace) -> dict[str, Any]:
    """Split text into subwords."""
    return pieces.encode_folder(args.raw, args.out, args.tokens, args.size, args.language)


def unpack_command(args: argparse.Namespace) -> dict[str, Any]:
    """Unpack an archive."""
    return unpack(args.raw, args.out, args.member)


def three_sizes(text: str) -> list[int]:
    """Parse three sizes, such as 300000,10000,30000, for argparse."""
    sizes = [int(part) for part in text.replace("/", ",").split(",")]
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(text)
    return sizes


def at_least(least: int) -> Any:
    """Return a type for argparse: an integer of at least ``least``."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: at least {least}")
        return int(text)

    return number


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = result.add_subparsers(dest="command", required=True)

    def command(name: str, run: Any, text: str, raw: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        made.add_argument("raw", type=Path, help=raw)
        made.add_argument("out", type=Path, help="new folder")
        made.set_defaults(run=run)
        return made

    owner = "folder with the owner's files"
    pairs = command("pairs", pairs_command, "parallel text: IWSLT, files line by line, or one file with tabs", owner)
    pairs.add_argument("--source", default="de", help="language")
    pairs.add_argument("--target", default="en", help="language")
    pairs.add_argument("--valid-set", default="tst2013", help="IWSLT: set for validation")
    pairs.add_argument("--test-set", default="tst2014", help="IWSLT: set for test")
    pairs.add_argument("--columns", default="en,de", help="file with tabs: languages of its first two columns")
    pairs.add_argument("--valid", type=at_least(1), default=1000, help="file with tabs: pairs for validation")
    pairs.add_argument("--test", type=at_least(1), default=2000, help="file with tabs: pairs for test")
    dialog = command("dialog", dialog_command, "DailyDialog: pairs of turns, no test pair that stands in train", owner)
    sentences = command("sentences", sentences_command, "text for a language model: One-Billion-Word, PTB, any", owner)
    sentences.add_argument(
        "--cut", type=three_sizes, help="sentences for train,valid,test, drawn at random; none: the corpus's own parts"
    )
    for made in (pairs, dialog):
        made.add_argument("--most", type=at_least(0), default=0, help="pairs for training at the most; 0: all")
    for made in (pairs, dialog, sentences):
        made.add_argument("--max-words", type=at_least(1), default=80, help="longer sentences are left out of training")
    for made in (pairs, sentences):
        made.add_argument("--seed", type=int, default=1, help="random seed of the split")
    encode = command("pieces", pieces_command, "subwords for a folder of text", "folder written by the others")
    encode.add_argument(
        "--tokens",
        choices=pieces.TOKENS,
        default="raw",
        help="what BPE is applied to: raw text, Moses tokens; or words, without BPE",
    )
    encode.add_argument("--size", type=at_least(1), default=8000, help="number of pieces, for all sides together")
    encode.add_argument(
        "--language", action="append", default=[], metavar="SIDE=LANG", help="for Moses tokens; repeatable"
    )
    text = (
        "files of an archive (tar, zip): none outside the folder, no links, no owners and special permissions of others"
    )
    archive = command("unpack", unpack_command, text, "archive; archives in it are unpacked too")
    archive.add_argument("--member", action="append", default=[], metavar="PATTERN", help="only these; repeatable")
    return result


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = parser().parse_args(argv)
        if not args.raw.is_dir() and args.command != "unpack":
            raise UserError(f"{args.raw} is not a directory")
        summary = args.run(args)
        print(f"{args.out}: {json.dumps(summary)}")


if __name__ == "__main__":
    main()
