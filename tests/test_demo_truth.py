"""The senses that a model has against those that are true."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kerbs_fairseq.demo.homonyms import Homonym, right, shuffled, table
from kerbs_fairseq.demo.truth import (
    Comparison,
    kinds_of_words,
    learned_senses,
    means_by_kind,
    true_senses,
)


@pytest.mark.parametrize(
    ("true", "learned", "expected"),
    [
        ([1, 1, 2, 3], [1, 1, 2, 4], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 − 6 Σ d² / (n (n² − 1)) = 1 − 24 / 120
        ([1, 2, 3], [2, 2, 2], 0.0),
    ],
)
def test_correlation(true: list[int], learned: list[int], expected: float) -> None:
    assert Comparison(np.array(true), np.array(learned)).correlation == pytest.approx(expected)


def test_many_senses_are_counted_together() -> None:
    lines = Comparison(np.array([1, 1, 2]), np.array([1, 16, 5])).table().splitlines()
    assert lines[0].split()[-3:] == ["4", "more", "mean"]
    assert [line.split() for line in lines[2:]] == [["1", "2", "1", "0", "0", "0", "1", "8.50"],
                                                    ["2", "1", "0", "0", "0", "0", "1", "5.00"]]  # fmt: skip


def test_table() -> None:
    lines = Comparison(np.array([1, 1, 1, 2]), np.array([1, 1, 3, 2])).table().splitlines()
    assert lines[0].split() == ["true", "senses", "words", "has", "1", "has", "2", "has", "3", "mean"]
    assert [line.split() for line in lines[2:]] == [
        ["1", "3", "2", "0", "1", "1.67"],
        ["2", "1", "0", "1", "0", "2.00"],
    ]


def test_means_by_kind(corpus: Path) -> None:
    kinds = {"bank": "homonym", "spring": "homonym", "the": "grammar", "acre": "narrow"}
    learned = {"the": 1, "bank": 3, "spring": 2, "acre": 1, "<unk>": 1}
    assert means_by_kind(learned, kinds) == {"homonym": 2.5, "grammar": 1.0, "narrow": 1.0}
    assert set(kinds_of_words(corpus / "truth.tsv").values()) == {"homonym", "grammar", "narrow", "topic", "wide"}


def test_files(corpus: Path, pairs: Path, tmp_path: Path) -> None:
    true = true_senses(corpus / "truth.tsv")
    assert (true["the"], max(true.values())) == (1, 4)
    words = [line.split()[0] for line in (pairs / "dict.tgt.txt").read_text().splitlines()]
    sense_to_word = torch.cat([torch.arange(4 + len(words)), torch.tensor([4, 4, 5])])
    head = {"sense_to_word": sense_to_word, "vectors": torch.zeros(len(sense_to_word), 2)}
    torch.save({"model": {f"decoder.head.senses.{name}": value for name, value in head.items()}}, tmp_path / "c.pt")
    learned = learned_senses(tmp_path / "c.pt", pairs / "dict.tgt.txt")
    assert [learned[word] for word in words[:3]] == [3, 2, 1]
    assert len(Comparison.of(true, learned).true) == len(set(words) & set(true))


def test_senses_that_are_the_true_ones() -> None:
    uses = [(7, "bank.0")] * 4 + [(8, "bank.1")] * 3 + [(8, "bank.0")]
    assert right(uses) == 7
    assert right([(7, true) for _, true in uses]) == 5  # one sense for all: the commonest
    assert 5 <= shuffled(uses) < 7
    assert shuffled(uses) == shuffled(uses)
    shown = table([Homonym("bank", 2, 3, uses), Homonym("unseen", 2, 1)])
    assert "88%" in shown.splitlines()[2]
    assert shown.splitlines()[-1].startswith("all 2")
