"""Comparison of learned and true senses: senses per word in a KerBS model and in the demo corpus."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kerbs_fairseq.inspection.findings import rank_correlation
from kerbs_fairseq.runs import checkpoint as schema


def true_senses(path: Path) -> dict[str, int]:
    """Return the number of senses of each word, from ``truth.tsv``."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["word"]: int(row["senses"]) for row in csv.DictReader(file, delimiter="\t")}


def kinds_of_words(path: Path) -> dict[str, str]:
    """Return the kind of each word, from ``truth.tsv``: homonym, or the range of its only sense."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {row["word"]: "homonym" if int(row["senses"]) > 1 else row["range"] for row in rows}


def means_by_kind(senses: dict[str, int], kinds: dict[str, str]) -> dict[str, float]:
    """Return the mean number of senses of the words of each kind, largest first."""
    groups: dict[str, list[int]] = {}
    for word in senses.keys() & kinds.keys():
        groups.setdefault(kinds[word], []).append(senses[word])
    means = {kind: sum(numbers) / len(numbers) for kind, numbers in groups.items()}
    return dict(sorted(means.items(), key=lambda item: (-item[1], item[0])))


def learned_senses(checkpoint: Path, dictionary: Path) -> dict[str, int]:
    """Return the number of senses of each word in a model, from its checkpoint and its dictionary."""
    from fairseq.data import Dictionary

    symbols = Dictionary.load(str(dictionary)).symbols
    sense_to_word = schema.load(checkpoint).head[schema.MAP]
    return dict(zip(symbols, torch.bincount(sense_to_word, minlength=len(symbols)).tolist()))


COLUMNS = 4  # numbers of senses with a column of their own


@dataclass
class Comparison:
    """Numbers of senses of the same words: ``true`` (words,) and ``learned`` (words,)."""

    true: Any
    learned: Any

    @classmethod
    def of(cls, true: dict[str, int], learned: dict[str, int]) -> "Comparison":
        """Return the comparison over the words that both have."""
        words = sorted(true.keys() & learned.keys())
        return cls(np.array([true[w] for w in words]), np.array([learned[w] for w in words]))

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation; 0 if one side is constant."""
        return rank_correlation(self.true.tolist(), self.learned.tolist())

    def table(self) -> str:
        """Return a table with a row for each true number of senses: words, and how many senses the model gives them."""
        most = min(int(self.learned.max()), COLUMNS)
        more = int(self.learned.max()) > most
        shown = [f"has {n}" for n in range(1, most + 1)] + ["more"] * more
        head = f"{'true senses':<12}{'words':>7}" + "".join(f"{name:>7}" for name in shown) + f"{'mean':>7}"
        lines = [head, "-" * len(head)]
        for n in np.unique(self.true):
            has = self.learned[self.true == n]
            counts = "".join(f"{int((has == m).sum()):7}" for m in range(1, most + 1))
            counts += f"{int((has > most).sum()):7}" * more
            lines.append(f"{n:<12}{len(has):7}{counts}{has.mean():7.2f}")
        return "\n".join(lines)
