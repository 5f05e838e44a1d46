"""The cells of the paper's tables, how we call them, and the figures printed there.

A cell is called MODEL-HEAD or MODEL-HEAD-ABLATION; CELL+NAME is a variant of it, trained with options of its own.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

from kerbs_fairseq.evaluation.scores import Bleu, Perplexity

HEADS = {"softmax": "softmax", "mos": "MoS", "kerbs": "KerBS"}
VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # NAME, which is a part of a folder's name
ABLATIONS = {"nokernel": "w/o kernel", "onesense": "one sense", "static": "w/o dynamic allocation"}


@dataclass(frozen=True)
class Task:
    """A recipe: what its models are judged by, and what the paper reports for its cells."""

    title: str
    corpus: str  # of the paper
    measure: str
    scorer: Union[Bleu, Perplexity]
    figures: dict[str, float]

    @property
    def cells(self) -> list[str]:
        """All that can be trained, by model: those of the paper, and every ablation with every model."""
        models = dict.fromkeys(cell.split("-")[0] for cell in self.figures)
        heads = [*HEADS, *(f"kerbs-{ablation}" for ablation in ABLATIONS)]
        return [f"{model}-{head}" for model in models for head in heads]

    def has(self, cell: str) -> bool:
        """Whether ``cell`` can be trained: one of the cells, or a variant of one."""
        base, plus, variant = cell.partition("+")
        return base in self.cells and (not plus or VARIANT.fullmatch(variant) is not None)

    def in_order(self, cells: Iterable[str]) -> list[str]:
        """Those of ``cells`` that can be trained, in the order of the table, each followed by its variants."""
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
            "seq2seq-kerbs": 27.28,
            "seq2seq-kerbs-nokernel": 26.79,
            "seq2seq-kerbs-onesense": 26.80,
            "seq2seq-kerbs-static": 27.00,
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
    ),
}


def name_of(cell: str) -> tuple[str, str]:
    """(model, output layer) as the table shows them: seq2seq-kerbs-static+x → ("seq2seq", "KerBS w/o … (x)")."""
    base, _, variant = cell.partition("+")
    model, head, *ablation = base.split("-")
    words = [HEADS[head], *(ABLATIONS[a] for a in ablation), *([f"({variant})"] if variant else [])]
    return model, " ".join(words)
