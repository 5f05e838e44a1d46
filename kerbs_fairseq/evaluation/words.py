"""Perplexity of groups of pieces: by their number of occurrences in training, and by their number of senses."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, Optional

import numpy as np
from numpy.typing import NDArray

from kerbs_fairseq.evaluation.runs import Run
from kerbs_fairseq.evaluation.table import row, signed
from kerbs_fairseq.runs import checkpoint
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_text
from kerbs_fairseq.runs.outputs import piece_log_probs

END = "</s>"
# in fairseq's dictionaries: places of </s> and <unk>, number of symbols that come before the words
EOS, UNK, SPECIAL = 2, 3, 4
OCCURRENCES = (10, 30, 100, 300, 1000, 10_000)  # groups end before these numbers
SENSES = (1, 2, 3, 5, 16)
Grouping = Callable[[str], str]
Totals = dict[str, tuple[int, float]]


def interval(value: int, ends: Sequence[int]) -> str:
    """Return the name of the group of a number: 10 to 29, or 10,000 and more."""
    low = max((end for end in ends if end <= value), default=0)
    high = next((end - 1 for end in ends if end > value), None)
    if high is None:
        return f"{low:,} and more"
    return f"{low:,}" if high == low else f"{low:,} to {high:,}" if low else f"up to {high:,}"


def counts_of(out: Path) -> dict[str, int]:
    """Return the number of occurrences in the training data of each piece of a language model."""
    lines = [line.rsplit(" ", 1) for line in read_text(out / "binary" / "dict.txt").splitlines()]
    if not all(len(line) == 2 and line[1].isdecimal() for line in lines):
        raise UserError(f"{out / 'binary' / 'dict.txt'} is not a dictionary of fairseq")
    return {piece: int(count) for piece, count in lines}


def senses_of(run: Run) -> Optional[NDArray[np.int64]]:
    """Return the number of senses of each word (words,) in a run's model; None if it has no senses."""
    path = run.folder / "checkpoint_best.pt"
    if not path.is_file():
        return None
    words = checkpoint.load(path).head.get(checkpoint.MAP)
    return None if words is None else np.bincount(words.numpy())


def totals(pieces: Sequence[tuple[str, float]], group_of: Grouping) -> Totals:
    """Return the number of pieces and the sum of their −log P of each group."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for piece, log_prob in pieces:
        sums[group_of(piece)].append(-log_prob)
    return {group: (len(losses), math.fsum(losses)) for group, losses in sums.items()}


def perplexity(total: tuple[int, float]) -> float:
    """Return the perplexity per piece of a number of pieces and the sum of their −log P."""
    return math.exp(total[1] / total[0])


def table_of(title: str, names: Sequence[str], scored: Sequence[Totals], order: Sequence[str]) -> str:
    """Return a table with a row per group: perplexity of the first run, and the differences of the others from it."""
    lines = [row([title, "pieces in the test set", *names]), row(["---"] * (2 + len(names)))]
    for group in (one for one in order if one in scored[0]):
        ours = [perplexity(one[group]) for one in scored]
        values = [f"{ours[0]:.2f}", *(f"{signed(100 * (other / ours[0] - 1), 1)} %" for other in ours[1:])]
        lines.append(row([group, f"{scored[0][group][0]:,}", *values]))
    return "\n".join(lines) + "\n"


def names_of(ends: Sequence[int]) -> list[str]:
    """Return the names of all groups, from the largest numbers to the smallest."""
    return [interval(end, ends) for end in (*ends[::-1], ends[0] - 1)]


def groups_of_pieces(out: Path, runs: Sequence[Run]) -> str:
    """Return the tables of some evaluated language models, which predict the same test set."""
    pieces = [piece_log_probs(run.folder / "eval-lm.log") for run in runs]
    if any([piece for piece, _ in one] != [piece for piece, _ in pieces[0]] for one in pieces):
        raise UserError("the runs were evaluated on different test sets: evaluate again")
    counts = counts_of(out)
    index = {END: EOS, **{piece: SPECIAL + i for i, piece in enumerate(counts)}}
    groupings: list[tuple[str, Grouping, list[str]]] = [
        ("all pieces", lambda piece: "all", ["all"]),
        (
            "occurrences in training",
            lambda piece: END if piece == END else interval(counts.get(piece, 0), OCCURRENCES),
            [END, *names_of(OCCURRENCES)],
        ),
    ]
    with_senses = next(((run, n) for run in runs if (n := senses_of(run)) is not None), None)
    if with_senses:
        run, number = with_senses
        if len(number) != len(counts) + SPECIAL:
            raise UserError(f"{run.folder} has {len(number)} words, and the dictionary of {out} another number")
        groupings.append(
            (
                f"senses in {run.cell}",
                lambda piece: interval(int(number[index.get(piece, UNK)]), SENSES),
                names_of(SENSES),
            )
        )
    names = [f"{run.cell}, seed {run.seed}" for run in runs]
    return "\n".join(
        table_of(title, names, [totals(one, group_of) for one in pieces], order) for title, group_of, order in groupings
    )
