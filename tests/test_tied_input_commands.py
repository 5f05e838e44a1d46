"""Inputs made of senses, from the command line, together with moving senses: resume, two processes, beams, mistakes."""

from pathlib import Path

import pytest
import torch
from commands import (
    MAP,
    MOVING,
    PACKAGE,
    QUICK,
    SMALL_LSTM,
    SMALL_TRANSFORMER,
    by_two,
    refused,
    run,
    train,
    twin,
    weights,
)
from forced_decoding import assert_beam_scores_are_those_of_forced_decoding

pytestmark = pytest.mark.e2e

POSTERIOR = f"{MOVING} --kerbs-input posterior"


def test_resumed_training_equals_uninterrupted_training(pairs: Path, tmp_path: Path) -> None:
    for name, stops in (("whole", [20]), ("parts", [10, 20])):
        for updates in stops:
            train(pairs, twin(SMALL_TRANSFORMER), tmp_path / name, f"{POSTERIOR} --max-update {updates}")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert int(whole["decoder.head.statistics.moves"]) > 20
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name


def test_two_processes_equal_one(pairs: Path, tmp_path: Path) -> None:
    options = f"{POSTERIOR} --max-update 7 --dropout 0 --lr 0.001"
    train(pairs, twin(SMALL_LSTM), tmp_path / "one", f"{options} --update-freq 2")
    run(by_two(pairs, twin(SMALL_LSTM), tmp_path / "two", f"{options} --ddp-backend c10d"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert torch.equal(one[MAP], two[MAP])
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("model", [SMALL_LSTM, SMALL_TRANSFORMER], ids=["lstm", "transformer"])
def test_beam_scores_are_those_of_forced_decoding(pairs: Path, corpus: Path, tmp_path: Path, model: str) -> None:
    train(pairs, twin(model), tmp_path, f"{POSTERIOR} --max-update 40")
    assert_beam_scores_are_those_of_forced_decoding(pairs, corpus, tmp_path / "checkpoint_last.pt", tmp_path)


def test_mistakes_get_one_line(pairs: Path, tmp_path: Path) -> None:
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_LSTM)} {QUICK} --save-dir {tmp_path} {POSTERIOR}"
    refused(f"{command} --decoder-out-embed-dim 48", "have 32 and 48: make --decoder-embed-dim")
    refused(f"{command} --kerbs-input-passes 0", "--kerbs-input-passes 0: at least 1")
    assert not list(tmp_path.rglob("*.pt"))
