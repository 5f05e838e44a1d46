"""The cells of our tables and of the paper's, their names, and the figures printed in the paper.

A cell is named MODEL-ARM; CELL+NAME is a variant of it, trained with additional options. The arms are in arms.txt.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

from kerbs_fairseq.evaluation.scores import Bleu, Perplexity

VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # NAME, part of the name of a folder
BASELINE = "softmax"  # the arm that others are compared with


@dataclass(frozen=True)
class Arm:
    """A line of arms.txt."""

    name: str
    head: str  # softmax, mos or kerbs; the last two are the prefix of the architecture
    title: str
    options: str  # for fairseq-train


def read_arms() -> dict[str, Arm]:
    """Return the arms by name, in the order of the tables; the recipes read the same file."""
    lines = Path(__file__).with_name("arms.txt").read_text(encoding="utf-8").splitlines()
    arms = [Arm(*line.split("|")) for line in lines if line and not line.startswith("#")]
    return {arm.name: arm for arm in arms}


ARMS = read_arms()


@dataclass(frozen=True)
class Task:
    """A recipe: how its models are scored, and what the paper reports for its cells."""

    title: str
    corpus: str  # of the paper
    measure: str
    scorer: Union[Bleu, Perplexity]
    figures: dict[str, float]
    dialog: bool = False  # length and diversity of the answers are shown too

    @property
    def cells(self) -> list[str]:
        """All cells: every model with every arm."""
        return [f"{model}-{arm}" for model in self.models for arm in ARMS]

    @property
    def models(self) -> list[str]:
        """The names of the models, such as seq2seq."""
        return list(dict.fromkeys(cell.split("-")[0] for cell in self.figures))

    def figure(self, model: str, *arms: str) -> Optional[float]:
        """Return the paper's figure for the first of ``arms`` that it has one for."""
        figures = (self.figures.get(f"{model}-{arm}") for arm in arms)
        return next((figure for figure in figures if figure is not None), None)

    def has(self, cell: str) -> bool:
        """Return whether ``cell`` is one of the cells, or a variant of one."""
        base, plus, variant = cell.partition("+")
        return base in self.cells and (not plus or VARIANT.fullmatch(variant) is not None)

    def in_order(self, cells: Iterable[str]) -> list[str]:
        """Return the known ones of ``cells`` in the order of the table, each followed by its variants."""
        known = {cell for cell in cells if self.has(cell)}
        return sorted(known, key=lambda cell: (self.cells.index(cell.partition("+")[0]), cell))


TASKS = {
    "mt_iwslt16": Task(
        "Translation",
        "IWSLT'16 de→en",
        "BLEU-4",
        Bleu(4),
        {
            "seq2seq-softmax": 25.91,
            "seq2seq-mos": 26.45,
            "seq2seq-kerbs": 27.00,  # the paper's "w/o dynamic allocation"
            "seq2seq-kerbs-moves": 27.28,
            "seq2seq-kerbs-nokernel": 26.79,
            "seq2seq-kerbs-onesense": 26.80,
            "transformer-softmax": 29.61,
            "transformer-mos": 28.54,
            "transformer-kerbs": 30.90,
        },
    ),
    "lm_1b": Task(
        "Language model",
        "One-Billion-Word",
        "PPL",
        Perplexity(),
        {"gru-softmax": 103.12, "gru-mos": 102.72, "gru-kerbs": 102.17},
    ),
    "dialog_dailydialog": Task(
        "Dialog",
        "DailyDialog",
        "BLEU-1",
        Bleu(1),
        {
            "seq2seq-softmax": 16.56,
            "seq2seq-mos": 13.73,
            "seq2seq-kerbs": 17.85,
            "transformer-softmax": 10.61,
            "transformer-mos": 9.81,
            "transformer-kerbs": 10.90,
        },
        dialog=True,
    ),
}


def name_of(cell: str) -> tuple[str, str]:
    """Return (model, output layer) as in the tables: seq2seq-kerbs-moves+x → ("seq2seq", "KerBS, … (x)")."""
    base, _, variant = cell.partition("+")
    model, _, arm = base.partition("-")
    return model, ARMS[arm].title + (f" ({variant})" if variant else "")


def baseline_of(cell: str) -> str:
    """Return the baseline of a cell: its model with the softmax."""
    return f"{cell.split('-', maxsplit=1)[0]}-{BASELINE}"
