"""Read DailyDialog as published: one dialog per line, each turn ended by __eou__."""

import itertools
from pathlib import Path

from kerbs_fairseq.corpora.lines import clean, raw_lines
from kerbs_fairseq.corpora.pairs import Pair, Splits
from kerbs_fairseq.runs.errors import UserError

END = "__eou__"


def turn_pairs(path: Path) -> list[Pair]:
    """Return each turn with the one that answers it."""
    pairs: list[Pair] = []
    for number, line in enumerate(raw_lines(path), 1):
        if not line.strip():
            continue
        *turns, rest = (clean(turn) for turn in line.split(END))
        if rest:
            raise UserError(f"{path}, line {number}: the last turn is not ended by {END}; is the file cut short?")
        spoken = [turn for turn in turns if turn]
        pairs += itertools.pairwise(spoken)
    if not pairs:
        raise UserError(f"{path} has no dialog")
    return pairs


def read_dialogs(folder: Path) -> Splits:
    """Read dialogues_train.txt, dialogues_validation.txt and dialogues_test.txt, in the folder or below it."""

    def of(name: str) -> list[Pair]:
        files = sorted(folder.rglob(f"dialogues_{name}.txt"))
        if not files:
            raise UserError(f"{folder} has no dialogues_{name}.txt, nor has any folder in it")
        return turn_pairs(files[0])

    return Splits(of("train"), of("validation"), of("test"))
