"""Two processes on the CPU, by torchrun and gloo, equal one process that sees the same sentences per update."""

from pathlib import Path

import pytest
import torch
from commands import ENVIRONMENT, SMALL_LSTM, SMALL_TRANSFORMER, by_two, run, start, train, weights

from kerbs_fairseq.plugin import fairseq_patches

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]  # with KerBS: test_kerbs_commands.py

# Shards are distributed batch by batch: with --update-freq 2 one process takes the same two batches for an update.
UPDATES = "--max-update 4 --dropout 0 --attention-dropout 0"
LSTM_UPDATES = "--max-update 4 --dropout 0"


@pytest.mark.parametrize("fixed", [True, False], ids=["with the fix", "without"])
def test_two_processes_resume(pairs: Path, tmp_path: Path, fixed: bool) -> None:
    # the second process gets the checkpoint from the first, through fairseq.distributed.utils
    train(pairs, SMALL_LSTM, tmp_path, "--max-update 2")
    env = ENVIRONMENT if fixed else {**ENVIRONMENT, fairseq_patches.SKIP_VARIABLE: "checkpoint-load"}
    done = start(by_two(pairs, SMALL_LSTM, tmp_path, "--max-update 3 --ddp-backend legacy_ddp"), env=env)
    if fixed:
        assert done.returncode == 0, done.stderr
        assert "@ 2 updates)" in done.stdout + done.stderr
    else:
        assert done.returncode != 0
        assert "Weights only load failed" in done.stderr


@pytest.mark.parametrize(
    ("model", "updates", "backend"),
    [
        (SMALL_TRANSFORMER, UPDATES, "c10d"),
        (SMALL_LSTM, LSTM_UPDATES, "legacy_ddp"),
    ],
    ids=["transformer-c10d", "lstm-legacy_ddp"],
)
def test_two_processes_equal_one(pairs: Path, tmp_path: Path, model: str, updates: str, backend: str) -> None:
    train(pairs, model, tmp_path / "one", f"{updates} --update-freq 2")
    run(by_two(pairs, model, tmp_path / "two", f"{updates} --ddp-backend {backend}"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-4, msg=name)
