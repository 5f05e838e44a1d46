"""``kerbs-demo-corpus``: write the demo corpus, with the true sense of every token.

``parallel/`` and ``mono/`` hold train, valid and test: ``.src`` and ``.tgt`` (translation) or ``.txt`` (language
model), one sentence per line, and ``.senses``, the target sentence with the number of its sense after every word.
``truth.tsv`` has a row for every sense of every word.
"""

import argparse
import collections
import csv
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kerbs_fairseq.demo.world import Sentence, World
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console
from kerbs_fairseq.runs.files import new_folder

NAME = "kerbs-demo-corpus"

SPLITS = ("train", "valid", "test")
GIVE_UP_AFTER = 200  # draws in a row without a new sentence
SECONDS = 5  # between two lines of progress


class Sizes(NamedTuple):
    """Numbers of sentences of one corpus."""

    train: int
    valid: int
    test: int


PARALLEL = Sizes(6000, 400, 400)
MONO = Sizes(8000, 400, 400)
TRUTH_COLUMNS = (
    "word", "senses", "sense", "part", "topic", "range", "gloss", "source", "source_also_means",
    "count_parallel", "count_mono",
)  # fmt: skip


MOST = 1_000_000  # sentences in total: they are held in memory, some kilobytes each
Progress = Callable[[Iterable[Sentence]], Iterable[Sentence]]


class WorldExhausted(UserError):
    """Raised if more distinct sentences are requested than the grammar is likely to produce."""


def distinct_sentences(world: World, seed: int) -> Iterator[Sentence]:
    """Yield sentences of ``world``, none of which repeats an earlier one on either side."""
    rng = random.Random(f"kerbs sentences {seed}")
    seen_source: set[tuple[str, ...]] = set()
    seen_target: set[tuple[str, ...]] = set()
    misses = 0
    while misses < GIVE_UP_AFTER:
        sentence = world.sentence(rng)
        if sentence.source in seen_source or sentence.words in seen_target:
            misses += 1
            continue
        misses = 0
        seen_source.add(sentence.source)
        seen_target.add(sentence.words)
        yield sentence
    raise WorldExhausted("the world has not that many distinct sentences: ask for fewer")


def no_progress(sentences: Iterable[Sentence]) -> Iterable[Sentence]:
    """Return the sentences without printing progress."""
    return sentences


def draw(
    seed: int, parallel: Sizes, mono: Sizes, progress: Progress = no_progress
) -> dict[tuple[str, str], list[Sentence]]:
    """Return the sentences of each (corpus, split), none in two of them; ``progress`` wraps the iteration."""
    stream = iter(progress(distinct_sentences(World(seed), seed)))
    return {
        (corpus, split): [next(stream) for _ in range(getattr(sizes, split))]
        for corpus, sizes in (("parallel", parallel), ("mono", mono))
        for split in SPLITS
    }


def write_corpus(
    folder: Path, seed: int = 1, parallel: Sizes = PARALLEL, mono: Sizes = MONO, progress: Progress = no_progress
) -> None:
    """Write the whole demo corpus into ``folder``; an interrupted call leaves no folder behind."""
    with new_folder(folder, replace=True) as scratch:
        drawn = draw(seed, parallel, mono, progress)
        for (corpus, split), sentences in drawn.items():
            write_split(scratch / corpus, split, sentences, with_source=corpus == "parallel")
        write_truth(scratch / "truth.tsv", World(seed), drawn)


def write_split(folder: Path, split: str, sentences: list[Sentence], with_source: bool) -> None:
    """Write one split: text and senses."""
    folder.mkdir(exist_ok=True)
    target = "tgt" if with_source else "txt"
    columns: dict[str, list[tuple[str, ...]]] = {
        target: [s.words for s in sentences],
        "senses": [tuple(e.tag for e in s.target) for s in sentences],
    }
    if with_source:
        columns["src"] = [s.source for s in sentences]
    for ending, lines in columns.items():
        text = "".join(" ".join(line) + "\n" for line in lines)
        (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")


def write_truth(path: Path, world: World, drawn: dict[tuple[str, str], list[Sentence]]) -> None:
    """Write the table of all senses, with their counts in the training sets."""
    counts = {
        corpus: collections.Counter(entry.tag for s in drawn[corpus, "train"] for entry in s.target)
        for corpus in ("parallel", "mono")
    }
    senses = collections.Counter(entry.word for entry in world.entries)
    by_source = collections.defaultdict(list)
    for entry in world.entries:
        if entry.source:
            by_source[entry.source].append(entry)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(TRUTH_COLUMNS)
        for e in world.entries:
            also = " ".join(other.tag for other in by_source[e.source] if other is not e)
            table.writerow(
                [e.word, senses[e.word], e.sense, e.part, e.topic, e.range, e.gloss, e.source, also]
                + [counts[corpus][e.tag] for corpus in ("parallel", "mono")]
            )


def size(text: str) -> Sizes:
    """Parse ``TRAIN,VALID,TEST`` of the command line."""
    try:
        sizes = Sizes(*(int(part) for part in text.split(",")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not three whole numbers: TRAIN,VALID,TEST") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: each split needs at least one sentence")
    return sizes


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog=NAME,
        description="Write a synthetic corpus for translation and language models, in which the senses of all words "
        "are known.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument("folder", type=Path, help="folder to write; it must not exist")
    result.add_argument("--seed", type=int, default=1, help="the same seed gives the same files")
    result.add_argument(
        "--parallel", type=size, default=PARALLEL, metavar="TRAIN,VALID,TEST", help="sentence pairs per split"
    )
    result.add_argument(
        "--mono", type=size, default=MONO, metavar="TRAIN,VALID,TEST", help="monolingual sentences per split"
    )
    result.add_argument("--force", action="store_true", help="replace the folder if it is there")
    return result


def shown(total: int) -> Progress:
    """Return a progress wrapper that prints a line on stderr every few seconds."""

    def watch(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        last = time.monotonic()
        for number, sentence in enumerate(sentences):
            if time.monotonic() - last > SECONDS:
                last = time.monotonic()
                print(f"{NAME}: {number:,} of {total:,} sentences", file=sys.stderr, flush=True)
            yield sentence

    return watch


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = parser().parse_args(argv)
        total = sum(args.parallel) + sum(args.mono)
        if total > MOST:
            raise UserError(f"{total:,} sentences are asked for in all, {MOST:,} are the most: ask for fewer")
        if args.folder.exists() and not args.force:
            raise UserError(f"{args.folder} exists: name another folder, or replace it by --force")
        if args.folder.exists() and not (args.folder / "truth.tsv").is_file():
            raise UserError(f"{args.folder} is not a demo corpus (it has no truth.tsv): it is not replaced")
        write_corpus(args.folder, args.seed, args.parallel, args.mono, shown(total))
        print(f"{sum(args.parallel):,} sentence pairs and {sum(args.mono):,} sentences in {args.folder}")


if __name__ == "__main__":
    main()
