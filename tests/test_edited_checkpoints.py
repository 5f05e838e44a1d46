"""Checkpoints that somebody has edited, loaded into a model as fairseq's commands do it."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from damages import MISSING, VALUES
from inprocess import prepare

from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.runs.errors import UserError

HEAD = "decoder.head."


@pytest.fixture(scope="module")
def model(joined: Path) -> Any:
    return prepare(joined, "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy --kerbs-input usage").model


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("senses.kernel_id", torch.tensor(9), "there is no kernel 9"),
        ("senses.kernel_id", torch.tensor(-1), "there is no kernel -1"),
        ("senses.kernel_id", torch.tensor(0.5), "kernel_id has the type torch.float32"),
        ("senses.sense_to_word", -1, "senses of no word"),
        ("senses.sense_to_word", 0.5, "sense_to_word has the type torch.float32"),
        ("senses.sense_to_word", torch.tensor([0, 1]), "sense_to_word of 2 senses"),
        ("senses.sense_to_word", "text", "sense_to_word is not a tensor"),
        ("senses.rates", torch.tensor([0, 1]), "the rates of θ and bias are"),
        ("statistics.decay", torch.tensor([0.1, 0.1]), "decay has the shape"),
    ],
)
def test_what_is_wrong_is_said(model: Any, name: str, value: Any, message: str) -> None:
    state = copy.deepcopy(model.state_dict())
    state[HEAD + name] = torch.full(state[HEAD + name].shape, value) if isinstance(value, (int, float)) else value
    with pytest.raises(UserError, match=f"(?s)^kerbs_fairseq: .*{message}.*use the dictionary and the"):
        model.load_state_dict(state, strict=True)


def test_any_edit_is_refused_or_loaded(model: Any) -> None:
    """With the exceptions that fairseq's commands turn into one line: ours, and torch's for what is missing."""
    whole = model.state_dict()
    names = [name for name in whole if ".head." in name or "choice_id" in name]
    refused, chance = 0, random.Random(1)
    for name in names:
        for value in chance.sample(VALUES, 8):
            state = {key: copy.deepcopy(saved) for key, saved in whole.items() if key != name or value is not MISSING}
            if value is not MISSING:
                state[name] = value
            try:
                copy.deepcopy(model).load_state_dict(state, strict=True)
            except (UserError, RuntimeError) as problem:
                said, ours = str(problem), isinstance(problem, UserError)
            else:
                continue
            refused += 1
            assert ("\n" not in said) if ours else said.startswith("Error(s) in loading state_dict"), (name, value)
    assert refused > len(names)


def test_a_layer_of_a_program_says_it_too() -> None:
    layer = KernelizedBayesianSoftmax(4, 9)
    state = {**layer.state_dict(), "senses.kernel_id": torch.tensor(9)}
    with pytest.raises(ValueError, match="there is no kernel 9"):
        layer.load_state_dict(state)
