"""The counts by which senses are allocated, against a count of the words in the text of the training data."""

import collections
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from inprocess import parse, prepare, trainer

from kerbs_fairseq.plugin.counts import Counts, target_counts

MODELS = {"translation": "transformer", "language model": "gru_lm"}


def counted(data: object, base: str, options: str = "") -> tuple[Any, Counts]:
    """The dictionary, and the counts that a training on ``data`` would use."""
    task = tasks.setup_task(convert_namespace_to_omegaconf(parse(data, base, f"--arch {base} {options}")).task)
    return task.target_dictionary, target_counts(task, task.target_dictionary)


def by_hand(text: Path, dictionary: Any) -> torch.Tensor:
    """How often each word occurs in a text, and how many lines that has, at </s>."""
    lines = text.read_text(encoding="utf-8").splitlines()
    number = collections.Counter(dictionary.index(word) for line in lines for word in line.split())
    number[dictionary.eos()] = len(lines)
    return torch.tensor([number[i] for i in range(len(dictionary))])


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, corpus: Path, pairs: Path, text: Path) -> tuple[str, Path, Path]:
    """A family of models, its data, and the text of the targets."""
    if request.param == "translation":
        return MODELS[request.param], pairs, corpus / "parallel" / "train.tgt"
    return MODELS[request.param], text, corpus / "mono" / "train.txt"


def test_counts_are_those_of_the_text(case: tuple[str, Path, Path]) -> None:
    base, data, source = case
    dictionary, counts = counted(data, base)
    assert not counts.from_dictionary
    assert torch.equal(counts.counts, by_hand(source, dictionary))


def test_shards_and_parts_are_added(case: tuple[str, Path, Path], tmp_path: Path) -> None:
    """fairseq reads the shards DATA:DATA one after the other, and train, train1, … as one."""
    base, data, source = case
    dictionary, _ = counted(data, base)
    once = by_hand(source, dictionary)
    _, shards = counted(os.pathsep.join((str(data), str(data))), base)
    assert torch.equal(shards.counts, 2 * once)
    shutil.copytree(data, tmp_path / "data")
    for path in [*(tmp_path / "data").glob("train.*")]:
        shutil.copy(path, path.with_name("train1" + path.name.removeprefix("train")))
    assert torch.equal(counted(tmp_path / "data", base)[1].counts, 2 * once)


def test_a_truncated_dictionary(text: Path, corpus: Path) -> None:
    dictionary, counts = counted(text, "gru_lm", "--output-dictionary-size 60")
    assert len(dictionary) == len(counts.counts) == 60
    assert not counts.from_dictionary
    rest = [i for i in range(60) if i != dictionary.unk()]  # which stands for the other words, and has one sense
    assert torch.equal(counts.counts[rest], by_hand(corpus / "mono" / "train.txt", dictionary)[rest])


@pytest.mark.parametrize("damage", ["missing", "of another dictionary"])
def test_without_data_the_dictionary_counts(text: Path, tmp_path: Path, damage: str) -> None:
    dictionary, counts = counted(text, "gru_lm")
    shutil.copytree(text, tmp_path / "data")
    if damage == "missing":
        (tmp_path / "data" / "train.idx").unlink()
    else:
        lines = (text / "dict.txt").read_text(encoding="utf-8").splitlines()
        (tmp_path / "data" / "dict.txt").write_text("\n".join(lines[:30]) + "\n", encoding="utf-8")
    small, other = counted(tmp_path / "data", "gru_lm")
    assert other.from_dictionary
    assert int(other.counts[small.eos()]) < int(counts.counts[dictionary.eos()])


def test_another_train_subset_is_told(text: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The task of language models does not know --train-subset, so the words of train are counted."""
    for split, told in (("train", False), ("valid", True)):
        caplog.clear()
        trainer(prepare(text, "gru_lm", f"--arch kerbs_gru_lm --optimizer sgd --train-subset {split}"))
        assert ("allocated by the words of train, since this task does not know of valid" in caplog.text) == told
